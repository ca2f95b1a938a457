"""From transfers to balances, in two stages: the shard that reads a transfer sends a posting to
each of its two accounts, and the shard that owns an account adds them up, in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rowlock.streams import Checkpoint, DynamicShards, EventBatch, StepContext, Streams

from .tables import Alarm, Base, Transfer

CREDIT = 5_000
"""So many cents an account may be overdrawn."""

streams = Streams(Base)
ledger = streams.flow(
    "ledger",
    Transfer,
    # Two for one replica, eight for four: few, so that one sees them split and join.
    shards=DynamicShards(0.5),
    checkpoint=Checkpoint(steps=5, seconds=1),
    # Short, so that this example is; a real host leaves these out.
    lock_timeout=6,
    fetch_delays=(0.1,),
    poll_interval=0.25,
)
postings = ledger.exchange("postings", int)
alarms = ledger.output("alarms", into=Alarm)


@ledger.batch()
def split(step: StepContext, batch: EventBatch[Transfer], _: Mapping[str, None]) -> None:
    """Send what is paid to both accounts."""
    step.send_many(postings, batch.column("payer"), [-cents for cents in batch.column("cents")])
    step.send_many(postings, batch.column("payee"), batch.column("cents"))


@postings.by_key(state=int)
def post(step: StepContext, account: str, before: int | None, moves: Sequence[int]) -> int:
    """Add what was paid; an account that has no credit left gets a letter."""
    after = (before or 0) + sum(moves)
    if after < -CREDIT <= (before or 0):
        values = {"account": account, "cents": after}
        step.emit(alarms, {"dedup_key": step.idempotency_key(), **values})
    return after
