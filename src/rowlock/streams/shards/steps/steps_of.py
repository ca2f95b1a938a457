"""Steps that some shards do together, and what each of them did: values that are handed around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rowlock.streams.committing.step_write import PartRow
from rowlock.streams.computing.compute import PoisonedKey
from rowlock.streams.cutting.flow_view import RecordedCut
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.shards.own_shard import OwnShard


class StepsOf(NamedTuple):
    """Consecutive steps that some shards do next.

    Attributes:
        shards: all at the first of these steps.
        before: the cut before them.
        cuts: the steps.
        is_replay: they were written before: nothing but states is kept, and all is compared.
    """

    shards: Sequence[OwnShard]
    before: RecordedCut
    cuts: Sequence[RecordedCut]
    is_replay: bool


@dataclass(slots=True)
class ShardDid:
    """What a shard did of some steps.

    Attributes:
        shard: which one.
        step: the step behind the last one that it did.
        parts: the record of each step with something to do.
        results: by the name of the output.
        poisoned: why it did no more; None: it did all.
        differs: how a replay came out otherwise than the first time; None: it did not.
    """

    shard: OwnShard
    step: int
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    poisoned: PoisonedKey | None = None
    differs: str | None = None
