"""shipped/: commands about files of the package."""
