"""checking/: what `rowlock check` finds, and how to mend it."""
