"""What the steps of one shard write, and what is written about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from rowlock.leases.item import PipelineItem
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.shards.failures import StepFailures
from rowlock.streams.state.folded_row import FoldedRow
from rowlock.streams.state.store import StateWrite


class PartRow(NamedTuple):
    """The record of what a shard did in a step.

    Attributes:
        step: its number.
        rows: how many events it had.
        input_digest: of these.
        outputs: how many results it had.
        output_digest: of results, messages and changed states.
        seconds: how long the computation took.
    """

    step: int
    rows: int
    input_digest: str
    outputs: int
    output_digest: str
    seconds: float


@dataclass(slots=True)
class StepWrite:
    """What is written for one shard, under its token.

    Attributes:
        item: the lease.
        range: its buckets.
        before: the step that its row says it does next.
        step: the step that it is to do next.
        version: the step at whose start the states are that are in the database then.
        snapshot: of the older version that is kept; None if there is none.
        replica: who holds it.
        failures: what the row is to say of failures.
        parts: of the steps that are written now.
        results: by the name of the output.
        states: that are written now.
        rows: of the host's tables, by the name of the stage that has folded into them.
        state_keys: how many keys have a state then, at least.
    """

    item: PipelineItem[Any]
    range: BucketRange
    before: int
    step: int
    version: int
    snapshot: int | None
    replica: UUID
    failures: StepFailures = field(default_factory=StepFailures)
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    states: list[StateWrite] = field(default_factory=list)
    rows: dict[str, list[FoldedRow]] = field(default_factory=dict)
    state_keys: int = 0

    @property
    def is_version(self) -> bool:
        """Whether the states of the step that comes next are written."""
        return self.version == self.step
