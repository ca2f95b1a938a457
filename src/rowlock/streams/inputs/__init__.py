"""inputs/: what flows read: a host's tables and named logs, and how far they may be read."""
