"""Stage 1: which rows, when, and how many. Claims them into the queue."""
