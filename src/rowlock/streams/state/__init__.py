"""State: what handlers keep for each key, in the database and in memory."""
