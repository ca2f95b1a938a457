"""A flow as it runs: everything that was declared, checked and no longer changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.streams.computing.dead_letters import DEAD_LETTERS
from rowlock.streams.computing.handlers import StageHandler
from rowlock.streams.cutting.plan import Checkpoint
from rowlock.streams.inputs.source import Source
from rowlock.streams.outputs.output import Output
from rowlock.streams.settings import FlowSettings
from rowlock.streams.shards.layout import DynamicShards
from rowlock.streams.stage import ExchangeStage
from rowlock.streams.state.fold_table import FoldTable
from rowlock.streams.tables import StreamTables, key_of

OWNER_NAME_CHARS_MAX = 200
"""So much of a flow's name is in its leases."""


def lease_owner(kind: str, flow: str) -> str:
    """Return the owner in leases of a pipeline of a flow: it names no one else, and fits.

    Args:
        kind: of the pipeline.
        flow: the name of the flow.
    """
    # Without the separator: behind it, leases say for whom besides they are held.
    plain = flow.replace(OWNER_SEPARATOR, ".")[:OWNER_NAME_CHARS_MAX]
    more = "" if plain == flow else f" {sha256(flow.encode()).hexdigest()[:8]}"
    return f"{kind} {plain}{more}"


def topic_of_flow(name: str) -> str:
    """Return the topic of hints for those who work on a flow: there is a new step, or a wish."""
    return f"stream:{name}"


@dataclass(frozen=True, eq=False)
class FlowProgram:
    """What replicas run of a flow.

    Attributes:
        name: of the flow.
        code_version: which version of the host's code this is, as it says itself.
        sources: by their names, in the order in which they were declared.
        stages: in the order in which a step passes them.
        exchanges: what handlers send to, of each stage behind the first.
        outputs: by their names.
        shards: how many there are to be.
        checkpoint: how often states are written.
        from_now: a new flow begins with what is added after it was created.
        settings: numbers.
        tables: of the wing.
        folds: the rows of stages that are folds, by the names of their handlers.
    """

    name: str
    code_version: str
    sources: Mapping[str, Source[Any]]
    stages: Sequence[StageHandler]
    exchanges: Sequence[ExchangeStage[Any]]
    outputs: Mapping[str, Output[Any]]
    shards: int | DynamicShards
    checkpoint: Checkpoint
    from_now: bool
    settings: FlowSettings
    tables: StreamTables
    folds: Mapping[str, FoldTable] = field(default_factory=dict)

    @property
    def id(self) -> int:
        """The key of its row."""
        return key_of("flow", self.name)

    @property
    def topic(self) -> str:
        """The topic of hints for those who work on it."""
        return topic_of_flow(self.name)

    @property
    def shards_topic(self) -> str:
        """The topic of hints that a shard may be claimed."""
        return f"{self.topic}:shards"

    @property
    def frontier_topic(self) -> str:
        """The topic of hints that shards have done a step."""
        return f"{self.topic}:frontier"

    @property
    def has_exchange(self) -> bool:
        """Whether shards send each other messages within a step."""
        return len(self.stages) > 1

    @property
    def shards_at_first(self) -> int:
        """How many shards a new flow has."""
        return self.shards.shards_for(1) if isinstance(self.shards, DynamicShards) else self.shards

    @property
    def description(self) -> str:
        """What must not change over the states and positions that are stored, as text."""
        lines = [f"source {source.fingerprint()}" for source in self.sources.values()]
        for stage in self.stages:
            state = "no state" if stage.codec is None else stage.codec.name
            lines.append(f"stage {stage.name} {stage.kind} {state}")
        lines += [f"exchange {each.name} {each.codec.name}" for each in self.exchanges]
        # Dead letters have one type, and whether a flow has some may change.
        lasting = (one for name, one in self.outputs.items() if name != DEAD_LETTERS)
        lines += [f"output {output.fingerprint()}" for output in lasting]
        return "\n".join(lines)

    @property
    def fingerprint(self) -> str:
        """The digest of `description`: replicas with another one are refused."""
        return sha256(self.description.encode()).hexdigest()

    def shard_id(self, lo: int) -> int:
        """Return the key of the row of a shard."""
        return key_of("shard", self.id, lo)
