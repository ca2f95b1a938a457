"""The exchange among all shards of a flow, when this replica holds them all and they are at one
step: messages stay in memory.

Nothing of such a step is recorded before all of these shards commit it in one transaction. So no
shard may be missing, and none may be behind or ahead; the caller that chooses this exchange
ensures it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rowlock.stream_errors import ShardStateError
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.exchanging.exchange import Events, Exchange, Parcels
from rowlock.streams.exchanging.in_thread import in_thread
from rowlock.streams.exchanging.parcels import Parcel, ReceivingStage, are_complete, arrived
from rowlock.streams.shards.own_shard import OwnShard


class MemoryExchange(Exchange):
    """Keeps the messages of some steps until they are fetched.

    Args:
        shards: all shards of the flow.

    Raises:
        ShardStateError: they do not have all buckets, or not at one step.
    """

    def __init__(self, shards: Iterable[OwnShard]) -> None:
        taking_part = list(shards)
        self._ranges = {shard.range for shard in taking_part}
        ats = {shard.at for shard in taking_part}
        if not are_complete(self._ranges) or len(ats) != 1:
            shown = ", ".join(f"{shard.range} at {shard.at}" for shard in taking_part)
            raise ShardStateError(f"messages cannot stay in memory among the shards {shown}")
        self._sent: dict[tuple[str, int], dict[BucketRange, Parcel]] = {}

    def __repr__(self) -> str:
        return f"<MemoryExchange of {len(self._ranges)} shards>"

    async def send(self, stage: ReceivingStage, parcels: Parcels) -> dict[OwnShard, str]:
        """Keep the messages."""
        for shard, by_step in parcels.items():
            for step, parcel in by_step.items():
                self._sent.setdefault((stage.name, step), {})[shard.range] = parcel
        return {}

    async def receive(
        self, stage: ReceivingStage, steps: Sequence[int], shards: Sequence[OwnShard]
    ) -> Events | None:
        """Give the messages away.

        Raises:
            ShardStateError: a shard has not sent, and never will: all do the same at one time.
        """
        sent = [self._sent.pop((stage.name, step), {}) for step in steps]
        if not all(map(are_complete, sent)):
            raise ShardStateError(f"a shard has sent nothing to {stage.name!r}")
        ranges = [shard.range for shard in shards]

        def work() -> Events:
            by_step = [
                arrived({sender.lo: [parcel] for sender, parcel in of_step.items()}, ranges, stage)
                for of_step in sent
            ]
            return list(zip(*by_step, strict=True))

        return await in_thread(work)
