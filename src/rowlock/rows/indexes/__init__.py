"""indexes/: which indexes the rows of a host want, for models and for migrations."""
