"""counting/: how much waits, and which replicas live, within bounds that no table breaks."""
