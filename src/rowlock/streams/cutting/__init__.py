"""Cuts: where a step ends in each source, recorded before anything depends on it."""
