"""Dataflow graphs: operators of unlike nature, each with its own lanes and limits, joined by ports
with back pressure.

A node reports in `event` what it needs. Where a call has ended, the nodes that it affects are asked
until none of them changes anything, and the next calls are known. There are no queues to size and
no tasks that wait, and a graph that cannot make progress is detected at once.

Not here: rows, leases and pipelines. A graph also runs without a database.

Source: the pipeline execution of Databend (ports with three flags, a state machine for each node,
work stealing), rebuilt for asyncio.
"""
