"""asking/: commands that look back or ahead at a row, and those with which others ask."""
