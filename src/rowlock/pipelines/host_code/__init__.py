"""Every call of the host's code by a pipeline: contained, and bounded in time."""
