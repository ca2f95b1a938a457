"""The row's day. Read `fetching`, `renewing`, `processing` and `settling` in this order. Loops and
decisions; no SQL.

A stage hands its rows on, so it knows the stages after it and `renewing`, which knows none; the
files beside them are what all stages share, and `pipeline`, `run` and `manager`, which put the
stages together.
"""
