"""Looks at the indexes of a leased table."""
