"""steering/: what a person does to rows and pipelines, one file a matter."""
