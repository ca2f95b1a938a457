"""dialects/: what each database does its own way for questions, one file each."""
