"""windows/: commands that list rows, and that open the dashboard."""
