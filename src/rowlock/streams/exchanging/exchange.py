"""What a step asks of an exchange, wherever the messages go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.exchanging.parcels import Parcel, ReceivingStage
from rowlock.streams.shards.own_shard import OwnShard

Parcels: TypeAlias = Mapping[OwnShard, Mapping[int, Parcel]]
"""What shards send to one stage, by the number of the step."""
Events: TypeAlias = Sequence[Sequence[Sequence[SourceRows]]]
"""The events of a stage: of each shard, of each step, part by part."""


class Exchange(ABC):
    """Takes the messages that shards of one replica send, and gives them what they are sent."""

    @abstractmethod
    async def send(self, stage: ReceivingStage, parcels: Parcels) -> dict[OwnShard, str]:
        """Send what shards have for a stage, all of it.

        A shard that turns out not to be held any more sends nothing, and is dropped.

        Returns:
            Why a shard must not go on: it sent something else before.

        Raises:
            Exception: as of the database; it may have been sent.
        """

    @abstractmethod
    async def receive(
        self, stage: ReceivingStage, steps: Sequence[int], shards: Sequence[OwnShard]
    ) -> Events | None:
        """Return what `shards` got in `steps`; None as long as a shard of the flow has not sent.

        Raises:
            Exception: as of the database.
        """
