"""The measures of graphs, which but one need no database."""

from __future__ import annotations

from graphs.batching import batching
from graphs.bodies import memory
from graphs.chains import depth, lag
from graphs.coroutines import coroutines
from graphs.ends import limits, waiting
from graphs.hops import blocks, hops
from graphs.realistic import realistic
from graphs.submits import drain, submits
from graphs.widths import width
from measure import NOWHERE, Measure

NONE = (NOWHERE,)

GRAPHS = (
    Measure("graph-hops", "five plain operators, value by value", hops, NONE),
    Measure("graph-blocks", "the same in blocks of 100, per value", blocks, NONE),
    Measure("graph-async", "three coroutines, in 1 and 8 lanes", coroutines, NONE),
    Measure("graph-width", "one lane, many, one lane", width, NONE),
    Measure("graph-realistic", "waits, SHA-256 and zlib", realistic, NONE),
    Measure("graph-batching", "a call of 20 ms for up to 32 values", batching, NONE),
    Measure("graph-submit", "submit through four coroutines", submits, NONE),
    Measure("graph-depth", "a chain of 100,000 nodes", depth, NONE, rounds_max=3),
    Measure("graph-lag", "the event loop beside that chain", lag, NONE, rounds_max=3),
    Measure("graph-limits", "the end at a time limit", limits, NONE),
    Measure("graph-waiting", "a second of waiting", waiting, NONE),
    Measure("graph-memory", "bodies of 1 MB, and nodes", memory, NONE, rounds_max=1),
    Measure("graph-drain", "drain, 100 workers, through a graph", drain, rounds_max=3),
)
