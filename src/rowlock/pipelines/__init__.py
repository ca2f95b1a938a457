"""The row's day. Read `fetcher`, `heartbeater`, `worker` and `settler` in this order. Loops and
decisions; no SQL.

A stage hands its rows on, so it knows the stages after it and `heartbeater`, which knows none.
`pipeline`, `run` and `manager` put the stages together; all else is what stages share.
"""
