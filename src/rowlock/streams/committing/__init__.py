"""Committing: the steps of many shards, written in one transaction."""
