"""history/: what became of each row, written behind the commits of its outcomes."""
