"""Dataflow graphs: operators of unlike nature, each with its own lanes and limits, joined by ports
with back pressure.

A node reports in `event` what it needs. Where a call has ended, the nodes that it affects are asked
until none of them changes anything, and the next calls are known. There are no queues to size and
no tasks that wait, and a graph that cannot make progress is detected at once.

Only `pipeline` knows of rows, leases and pipelines. A graph also runs without a database.

Source: the pipeline execution of Databend (ports with three flags, a state machine for each node,
work stealing), rebuilt for asyncio.
"""

from __future__ import annotations

from rowlock.graph.flow import Flow, Graph, Lanes
from rowlock.graph.host_code import check_interrupt
from rowlock.graph.pipeline import (
    GraphCallTookLong,
    GraphDeadlocked,
    GraphPipeline,
    GraphRebuilt,
    Items,
    Outcomes,
)
from rowlock.graph.processor import InputPort, NodeStatus, OutputPort, Place, Port, Processor
from rowlock.graph.run import run_graph, stream_graph
from rowlock.graph.standing import StandingGraph
from rowlock.graph.statistics import GraphStatistics, OperatorStatistics
from rowlock.graph.threads import GraphRuntime, default_runtime

__all__ = [
    "Flow",
    "Graph",
    "GraphCallTookLong",
    "GraphDeadlocked",
    "GraphPipeline",
    "GraphRebuilt",
    "GraphRuntime",
    "GraphStatistics",
    "InputPort",
    "Items",
    "Lanes",
    "NodeStatus",
    "OperatorStatistics",
    "Outcomes",
    "OutputPort",
    "Place",
    "Port",
    "Processor",
    "StandingGraph",
    "check_interrupt",
    "default_runtime",
    "run_graph",
    "stream_graph",
]
