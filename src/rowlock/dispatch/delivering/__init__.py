"""How a task comes to a worker, and what comes of it there."""
