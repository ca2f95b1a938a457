"""Meters send everything several times, in any order and to any process; three months pass; the
process that writes the invoices is killed half-way. Every unit is on one invoice line.

The one idea: a fact is added once, counted once and billed once, since each of these is one
transaction of the database. A batch has a number of its meter's, so a second attempt adds nothing.
A step writes states, results and its own number together. The cursor of a consumer moves with the
rows that it writes.

Run it: ``python examples/14_meter_usage.py`` (needs ``pip install "rowlock[testing]"``, for the
three months). Everything that works is a process of its own, from ``examples/metering/``; what is
computed there is in ``streams.py``. It ends by itself and leaves nothing behind, and fails if a
unit is on no line or on two.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from datetime import date
from pathlib import Path

from loopback.child import Child, started
from metering.dates import DAY, FIRST_DAY, LAST_DAY, Calendar, days
from metering.place import Sessions, opened
from metering.readings import SENDERS, arrivals, attempts, measured
from metering.streams import Base, InvoiceLine
from sqlalchemy import func, select

POLL_S = 0.05
WAIT_S_MAX = 240.0
"""After so long the example gives up."""


async def pass_three_months(calendar: Calendar, senders: list[Child]) -> int:
    """Begin each day when all that arrived the day before was taken; return how many batches were
    added.
    """
    added = 0
    for day in days():
        calendar.turn_to(day)
        for sender in senders:
            sender.tell(day.isoformat())
        added += sum([int(await sender.line()) for sender in senders])
    calendar.turn_to(LAST_DAY + DAY)  # nothing comes any more: a timer closes the last month
    return added


async def bill(folder: Path, sessions: Sessions) -> None:
    """Have invoices written until there are enough, half of them by a second process."""
    enough = len(measured())
    async with started("metering.billing", str(folder), str(enough // 2)) as billing:
        print(f"billing: killed with {await billing.line()}", flush=True)
        print(f"billing: exit code {await billing.process.wait()}", flush=True)
    async with started("metering.billing", str(folder), str(2 * enough)) as billing:
        while await count_lines(sessions) < enough:  # noqa: ASYNC110  # another process writes
            await asyncio.sleep(POLL_S)
        await billing.end()


async def count_lines(sessions: Sessions) -> int:
    """Return how many invoice lines there are."""
    async with sessions() as session:
        return await session.scalar(select(func.count()).select_from(InvoiceLine)) or 0


async def recount(sessions: Sessions) -> bool:
    """Compare the invoices with what the meters measured; return whether they are the same."""
    async with sessions() as session:
        rows = (await session.scalars(select(InvoiceLine))).all()
    billed = Counter[tuple[str, date]]()
    for row in rows:
        billed[row.account, row.month] += row.units
    expected = measured()
    print(f"{len(rows)} invoice lines, for {len(billed)} months of accounts")
    print(f"units: {expected.total()} measured, {billed.total()} billed")
    print(f"on no line: {(expected - billed).total()}, too many: {(billed - expected).total()}")
    return billed == expected and len(rows) == len(billed)


async def main(folder: Path) -> bool:
    """Run all processes, and recount."""
    calendar = Calendar(folder)
    calendar.turn_to(FIRST_DAY)
    async with asyncio.timeout(WAIT_S_MAX), AsyncExitStack() as stack:
        database = await stack.enter_async_context(opened(folder))
        await database.create_tables(Base.metadata)
        replica, *senders = [
            await stack.enter_async_context(started(module, str(folder), *which))
            for module, *which in [
                ("metering.replica",),
                *(("metering.taking", str(number)) for number in range(SENDERS)),
            ]
        ]
        for process in (replica, *senders):
            await process.line()
        times = len(attempts())
        print(f"{len(arrivals())} batches, sent {times} times to {SENDERS} processes", flush=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(bill(folder, database.session_factory))
            added = await pass_three_months(calendar, senders)
        print(f"added: {added}; there already: {times - added}", flush=True)
        await replica.end()
        return await recount(database.session_factory)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(0 if asyncio.run(main(Path(temporary))) else 1)
