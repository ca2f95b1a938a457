"""dialects/: what each database does its own way for streams, one file each."""
