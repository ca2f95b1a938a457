"""Shards: leased rows, each with a range of the buckets; and what the holder of one does next."""
