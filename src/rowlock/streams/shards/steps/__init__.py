"""Doing the steps of shards: reading, computing, comparing; nothing is written here."""
