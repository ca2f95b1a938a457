"""What a shard computes in a step: rows and states in; states, results, messages and digests out.

Everything here is pure: it runs no SQL, asks no clock and reads no file.
"""
