"""Rows that an item locks beside its own: which they are, and what its outcome writes to them."""
