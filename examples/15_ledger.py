"""Money is moved between accounts while the replicas that keep the ledger become four, and then
two. The sum of all balances is zero in each of twenty snapshots.

The one idea: a transfer changes two accounts, which belong to two shards; both do it in the same
numbered step. So a moment of the ledger is a step, and a snapshot has the balances of all shards at
the start of one, while the ledger goes on. Shards split, join and move between two steps.

Run it: ``python examples/15_ledger.py`` (needs ``pip install httpx "rowlock[testing]"``; not on
Windows). The replicas are ``examples/transferring/replica.py``; what they do is in
``examples/transferring/streams.py``. It runs on PostgreSQL, ends by itself and leaves nothing
behind, and fails unless every sum is zero, every balance that of plain SQL, and one letter is there
for each account that is overdrawn.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from loopback.bucket import Bucket, serving_bucket
from loopback.child import Child, started
from loopback.database import Sessions, opened
from loopback.holders import shards_held
from sqlalchemy import func, select, union_all
from transferring.streams import CREDIT, ledger, post
from transferring.tables import Alarm, Base, Transfer

from rowlock.testing import PostgresqlServer

ACCOUNTS = 40
OVERDRAWN = 7
"""So many of the accounts only pay."""
SNAPSHOTS = 20
PHASES = ((4, SNAPSHOTS // 2), (2, SNAPSHOTS))
"""So many replicas after the first one, until so many snapshots were taken."""
WRITERS = 4
TRANSFERS_MIN = 4_800
TRANSFERS_PER_COMMIT = 20
PAUSE_S = 0.5
POLL_S = 0.1
WAIT_S_MAX = 240.0
"""After so long the example gives up."""


@dataclass
class Counts:
    """What was done so far.

    Attributes:
        transfers: how many were written.
        sums: the sum of all balances in each snapshot.
    """

    transfers: int = 0
    sums: list[int] = field(default_factory=list)


@dataclass
class Place:
    """Where all this happens.

    Attributes:
        url: of the database.
        owners: where letters to the owners of accounts arrive.
        stack: ends the replicas.
    """

    url: str
    sessions: Sessions
    owners: Bucket
    stack: AsyncExitStack


# Money moves --------------------------------------------------------------------------------------


def transfer(number: int) -> Transfer:
    """Return a transfer. The accounts that only pay come below their credit; each other one is paid
    a little more than it pays.
    """
    payer, payee = number % ACCOUNTS, (number * 7 + 3) % (ACCOUNTS - OVERDRAWN) + OVERDRAWN
    return Transfer(payer=f"account-{payer}", payee=f"account-{payee}", cents=number % 90 + 10)


async def pay(sessions: Sessions, counts: Counts, ended: asyncio.Event) -> Transfer:
    """Write transfers, some in each transaction, until there are enough; return the last one."""
    number = 0
    while True:
        async with sessions.begin() as session:
            some = [transfer(number + ahead) for ahead in range(TRANSFERS_PER_COMMIT)]
            session.add_all(some)
        number += len(some)
        counts.transfers += len(some)
        if ended.is_set() and counts.transfers >= TRANSFERS_MIN:
            return some[-1]
        await asyncio.sleep(PAUSE_S)


async def balances_of_one_step(sessions: Sessions) -> dict[str, int]:
    """Return what is in each account at the start of one step."""
    async with ledger.snapshot(sessions, timeout=WAIT_S_MAX) as frozen:
        return {account: cents async for account, cents in frozen.items(post)}


# Replicas come and go -----------------------------------------------------------------------------


async def scale(replicas: list[Child], wanted: int, place: Place) -> None:
    """Start or end replicas until there are as many as wanted, and wait until these share all
    shards: twice as many as there are replicas.
    """
    while len(replicas) > wanted:
        await replicas.pop().end()
    while len(replicas) < wanted:
        child = started("transferring.replica", place.url, place.owners.url)
        replicas.append(await place.stack.enter_async_context(child))
        await replicas[-1].line()
    shared = [2] * wanted
    while await shards_held(ledger, place.sessions, replicas) != shared:  # noqa: ASYNC110  # they do
        await asyncio.sleep(POLL_S)
    print(f"replicas: {wanted}, shards: {2 * wanted}, two each", flush=True)


async def grow_and_shrink(place: Place, counts: Counts) -> None:
    """Take snapshots, with one replica, while it gets others, and while these leave."""
    replicas: list[Child] = []
    await scale(replicas, 1, place)
    for wanted, until in PHASES:
        scaling = asyncio.create_task(scale(replicas, wanted, place))
        while len(counts.sums) < until or not scaling.done():
            counts.sums.append(sum((await balances_of_one_step(place.sessions)).values()))
        await scaling


# The recount --------------------------------------------------------------------------------------


async def balances_by_sql(sessions: Sessions) -> dict[str, int]:
    """Return what is in each account, by plain SQL that knows nothing of flows."""
    paid = select(Transfer.payer.label("account"), (-Transfer.cents).label("cents"))
    moves = union_all(paid, select(Transfer.payee, Transfer.cents)).subquery()
    sums = select(moves.c.account, func.sum(moves.c.cents).label("cents")).group_by(moves.c.account)
    async with sessions() as session:
        return {row.account: row.cents for row in await session.execute(sums)}


async def all_sent(sessions: Sessions) -> None:
    """Wait until no letter is due."""
    due = select(func.count()).select_from(Alarm).where(Alarm.status != "completed")
    while True:
        async with sessions() as session:
            if not await session.scalar(due):
                return
        await asyncio.sleep(POLL_S)


def recount(
    counts: Counts, *, found: dict[str, int], expected: dict[str, int], letters: Sequence[str]
) -> bool:
    """Compare snapshots, balances and letters; return whether all agree."""
    nonzero = sum(map(bool, counts.sums))
    differ = len(found.items() ^ expected.items())
    overdrawn = sorted(account for account, cents in expected.items() if cents < -CREDIT)
    print(f"{counts.transfers} transfers, {len(expected)} accounts")
    print(f"snapshots: {len(counts.sums)}, with another sum than zero: {nonzero}")
    print(f"balances that are not those of SQL: {differ}")
    print(f"overdrawn: {len(overdrawn)}, letters to their owners: {len(letters)}", flush=True)
    is_whole = len(counts.sums) >= SNAPSHOTS and len(expected) == ACCOUNTS
    return is_whole and not nonzero + differ and overdrawn == sorted(letters) != []


async def run(place: Place) -> bool:
    """Pay, scale, and recount."""
    counts, ended = Counts(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(pay(place.sessions, counts, ended)) for _ in range(WRITERS)]
        await grow_and_shrink(place, counts)
        ended.set()
    for writer in writers:
        await ledger.wait_for(place.sessions, writer.result(), timeout=WAIT_S_MAX)
    await all_sent(place.sessions)
    letters = [body.decode() for body in place.owners.objects.values()]
    found = await balances_of_one_step(place.sessions)
    expected = await balances_by_sql(place.sessions)
    return recount(counts, found=found, expected=expected, letters=letters)


async def main(url: str) -> bool:
    """Make the tables, and run."""
    with serving_bucket() as owners:
        async with asyncio.timeout(WAIT_S_MAX), opened(url) as sessions, AsyncExitStack() as stack:
            async with sessions.begin() as session:
                connection = await session.connection()
                await connection.run_sync(Base.metadata.create_all)  # a real host migrates
            return await run(Place(url, sessions, owners, stack))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        server = PostgresqlServer(Path(temporary))
        try:
            is_right = asyncio.run(main(server.start().render_as_string(hide_password=False)))
        finally:
            server.stop()
    sys.exit(0 if is_right else 1)
