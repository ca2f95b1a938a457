"""asking/: which database a pipeline's rows are in, and what is said when it does not answer."""
