"""checking/: what `rowlock check` finds, and the migration that mends it."""
