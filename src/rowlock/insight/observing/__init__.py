"""observing/: a replica says that it lives, and what it does."""
