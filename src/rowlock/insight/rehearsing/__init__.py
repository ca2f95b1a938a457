"""rehearsing/: `process` is run for a row, and nothing of it is written."""
