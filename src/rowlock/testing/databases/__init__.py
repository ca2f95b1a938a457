"""Databases of a test's own, and the clocks that they follow."""
