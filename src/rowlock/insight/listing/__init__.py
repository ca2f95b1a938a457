"""listing/: rows by state, a page at a time."""
