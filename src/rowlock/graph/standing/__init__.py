"""Graphs that stay open: values come one by one, each from a caller that waits for its result."""
