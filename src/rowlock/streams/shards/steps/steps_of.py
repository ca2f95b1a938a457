"""Steps that some shards do together, and what each of them did: values that are handed around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rowlock.streams.committing.step_write import PartRow
from rowlock.streams.computing.compute import Computed, PoisonedKey
from rowlock.streams.computing.context import NOTHING_YET, HandedOut
from rowlock.streams.computing.digests import combined
from rowlock.streams.computing.messages import SentMessages
from rowlock.streams.computing.rows import input_digest
from rowlock.streams.cutting.flow_view import RecordedCut
from rowlock.streams.exchanging.exchange import Exchange
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.shards.own_shard import OwnShard

NO_INPUT = input_digest(())


@dataclass(eq=False)
class StepsOf:
    """Consecutive steps that some shards do next, stage by stage.

    Attributes:
        shards: all at the first of these steps.
        before: the cut before them.
        cuts: the steps.
        in_memory: the shards are all of the flow, and what they send each other stays in memory; so
            all of them write these steps in one transaction, or none does.
        exchange: where messages go to; None in a flow of one stage.
        stage: the number of the stage that is done next.
        did: what each shard has done of them.
        parts: what replays are compared with, by `lo` and step.
    """

    shards: list[OwnShard]
    before: RecordedCut
    cuts: Sequence[RecordedCut]
    in_memory: bool = False
    exchange: Exchange | None = None
    stage: int = 0
    did: dict[OwnShard, ShardDid] = field(default_factory=dict)
    parts: Mapping[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps."""
        return [cut.step for cut in self.cuts]


@dataclass(slots=True)
class StagesDone:
    """What one shard has done of one step, up to some stage.

    Attributes:
        rows: how many rows of the sources it has.
        input_digest: of these.
        digests: of what followed, of each stage; empty where a stage had nothing to do.
        outputs: how many results there are.
        seconds: how long it was computed.
        handed_out: results and messages, of all stages.
    """

    rows: int = 0
    input_digest: str = NO_INPUT
    digests: list[str] = field(default_factory=list)
    outputs: int = 0
    seconds: float = 0.0
    handed_out: HandedOut = NOTHING_YET

    def add(self, computed: Computed | None, seconds: float) -> None:
        """Add a stage; None: it had nothing to do."""
        if computed is None:
            self.digests.append("")
            return
        if not self.digests:
            self.rows, self.input_digest = computed.rows, computed.input_digest
        self.digests.append(computed.output_digest)
        self.outputs += len(computed.results)
        self.seconds += seconds
        self.handed_out = computed.handed_out

    def part(self, step: int) -> PartRow | None:
        """Return the record of the step; None if there was nothing to do."""
        if not any(self.digests):
            return None
        digest = combined(self.digests)
        return PartRow(step, self.rows, self.input_digest, self.outputs, digest, self.seconds)


@dataclass(slots=True)
class ShardDid:
    """What a shard did of some steps.

    Attributes:
        shard: which one.
        steps: that it was to do.
        step: the step behind the last one that it did.
        done: each step, up to the stage that was done last.
        sent: messages, by the name of the stage that gets them, the step, and the number of the
            stage that has sent them.
        parts: the record of each step with something to do.
        results: by the name of the output.
        poisoned: why it did no more; None: it did all.
        differs: how a replay came out otherwise than the first time; None: it did not.
    """

    shard: OwnShard
    steps: StepsOf
    step: int
    done: dict[int, StagesDone] = field(default_factory=dict)
    sent: dict[str, dict[int, dict[int, SentMessages]]] = field(default_factory=dict)
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    poisoned: PoisonedKey | None = None
    differs: str | None = None

    @property
    def is_replay(self) -> bool:
        """Whether these steps were written before: nothing but states is kept, and all is
        compared.
        """
        return self.steps.cuts[0].step < self.shard.step

    @property
    def has_failed(self) -> bool:
        """Whether the shard cannot go on."""
        return self.poisoned is not None or self.differs is not None
