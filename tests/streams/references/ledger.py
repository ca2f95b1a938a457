"""A ledger: transfers are posted at both of their accounts in one step, so that all balances sum up
to zero at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.streams import EventBatch, EventColumns, StepContext, StreamFlow, Streams

from .nexmark import Base
from .reference import Fact, Reference, Rows, Sessions, Supply, by_sql

SEED: Final = 6
ACCOUNTS: Final = 200
CENTS_MAX: Final = 10_000


class Transfer(EventColumns, Base):
    """Cents that go from one account to another one."""

    __tablename__ = "transfers"
    __stream_key__ = "payer"
    payer: Mapped[str] = mapped_column(String(20))
    payee: Mapped[str] = mapped_column(String(20))
    cents: Mapped[int]


RECOUNT: Final = """
    SELECT account, sum(cents) FROM (
        SELECT payer AS account, -cents AS cents FROM transfers
        UNION ALL SELECT payee, cents FROM transfers
    ) AS postings
    GROUP BY account
"""


def transfers(count: int) -> Iterator[Fact]:
    rng = Random(SEED)
    for _ in range(count):
        payer, payee = (f"account {rng.randrange(ACCOUNTS)}" for _ in range(2))
        values = {"payer": payer, "payee": payee, "cents": rng.randrange(1, CENTS_MAX)}
        yield Fact(Transfer, values)


TRANSFERS: Final = Supply("transfers", transfers)


def balances(streams: Streams, **settings: Any) -> Reference:
    flow: StreamFlow[Transfer] = streams.flow("ledger", Transfer, **settings)
    postings = flow.exchange("postings", int)
    changed = flow.output("changed", int)

    @flow.batch()
    def divide(step: StepContext, batch: EventBatch[Transfer], _: Any) -> None:
        cents = batch.column("cents")
        step.send_many(postings, batch.column("payer"), [-one for one in cents])
        step.send_many(postings, batch.column("payee"), cents)

    @postings.by_key(state=int)
    def post(step: StepContext, account: str, cents: int | None, moves: list[int]) -> int:
        after = (cents or 0) + sum(moves)
        step.emit(changed, after)
        return after

    async def found(sessions: Sessions) -> Rows:
        last: dict[str | None, int] = {}
        async for result in changed.consume(sessions, follow=False):
            last |= {row.key: row.value for row in result.rows}
            assert sum(last.values()) == 0, f"cents were made or lost in step {result.step}"
        return Counter(last.items())

    return Reference(flow, TRANSFERS, found, by_sql(RECOUNT))
