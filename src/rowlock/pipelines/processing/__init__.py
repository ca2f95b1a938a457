"""Stage 3: gives each row to a worker, and the host's `process` works on it."""
