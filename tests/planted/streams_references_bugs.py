"""Guards of which known queries tell: the answer of a flow is not that of SQL any more."""

from __future__ import annotations

from bug import Bug

REFERENCES = "tests/streams/references/test_references.py::test_answers_are_those_of_a_recount"

REFERENCES_BUGS = (
    Bug(
        "of all shards, one sends messages to a stage",
        "streams/exchanging/parcels.py",
        "_joined",
        "joined.extend(parcel[number])",
        "joined = parcel[number]",
        (REFERENCES,),
    ),
    Bug(
        "of two sources, a step has the rows of the first one",
        "streams/computing/batch.py",
        "EventBatch.__init__",
        "tuple(part for part in parts if len(part))",
        "tuple(part for part in parts if len(part))[:1]",
        (REFERENCES,),
    ),
    Bug(
        "timers end with the holder of their shard",
        "streams/shards/steps/timers.py",
        "open_timers",
        "if timer.key not in stage.dirty:",
        "if timer.key in stage.dirty:",
        (REFERENCES,),
    ),
)
