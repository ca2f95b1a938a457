"""Streams: facts that a service adds as rows, processed in numbered steps, each counted once.

A step is a cut through all inputs that is recorded before anything depends on it. After that, what
each shard has to do is fixed: any holder can do it, repeat it, and detect that it was done.

Files that decide are pure: they run no SQL, ask no clock and read no file.

Source: the design of distributed steps of Feldera, rebuilt over leased rows.
"""

from __future__ import annotations

from rowlock.streams.computing.compute import DeadEvent
from rowlock.streams.computing.handlers import FORGET, Forget, StepContext
from rowlock.streams.computing.rows import EventBatch
from rowlock.streams.consumers import StepOutput, StreamRow
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.inputs.event_log import Appended, EventLog
from rowlock.streams.inputs.source import Source
from rowlock.streams.inputs.step_inputs import (
    InputDifference,
    InputRow,
    StepInputs,
    StepPart,
    Verification,
)
from rowlock.streams.inputs.table_source import EventColumns, TableSource
from rowlock.streams.outputs import Output
from rowlock.streams.program import ExchangeStage, StreamStage
from rowlock.streams.shards.layout import DynamicShards
from rowlock.streams.snapshots import StateSnapshot
from rowlock.streams.status import (
    ConsumerStatus,
    ReplicaStatus,
    ShardStatus,
    SourceStatus,
    StreamStatus,
)
from rowlock.streams.streams import Streams
from rowlock.streams.tables import (
    add_event_columns,
    add_event_guard,
    add_stream_checks,
    add_stream_tables,
    drop_event_columns,
    drop_event_guard,
    drop_stream_checks,
    drop_stream_tables,
    event_columns,
)

__all__ = [
    "FORGET",
    "Appended",
    "Checkpoint",
    "ConsumerStatus",
    "DeadEvent",
    "DynamicShards",
    "EventBatch",
    "EventColumns",
    "EventLog",
    "ExchangeStage",
    "Forget",
    "InputDifference",
    "InputRow",
    "OpenWriter",
    "Output",
    "ReplicaStatus",
    "ShardStatus",
    "Source",
    "SourceStatus",
    "StateSnapshot",
    "StepContext",
    "StepInputs",
    "StepOutput",
    "StepPart",
    "StreamFlow",
    "StreamRow",
    "StreamStage",
    "StreamStatus",
    "Streams",
    "TableSource",
    "Verification",
    "add_event_columns",
    "add_event_guard",
    "add_stream_checks",
    "add_stream_tables",
    "drop_event_columns",
    "drop_event_guard",
    "drop_stream_checks",
    "drop_stream_tables",
    "event_columns",
]
