"""From payments to balances: the balance of an account is the fold of its payments."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.streams import StepContext, Streams

from .tables import Balance, Base, Payment

SHARDS = 8

streams = Streams(Base)
balances = streams.flow(
    "balances",
    Payment,
    shards=SHARDS,
    # Short, so that this example is; a real host leaves these out.
    lock_timeout=4,
    fetch_delays=(0.1,),
    poll_interval=0.05,
)


@balances.fold(Balance)
def add(step: StepContext, balance: Balance, payments: Sequence[Payment]) -> None:
    """Add what was paid."""
    balance.cents += sum(payment.cents for payment in payments)
