"""outputs/: results by step, and those who read them."""
