"""One of the processes to which meters send: takes what arrives here, day by day."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import date
from operator import attrgetter
from pathlib import Path

from loopback.child import next_line

from rowlock.streams import Appended

from .dates import is_last_of_month
from .place import Sessions, opened
from .readings import Batch, attempts
from .streams import metering, usage

WAIT_S = 60.0
"""How long the end of a month may wait for the steps of the month."""


async def take(sessions: Sessions, batch: Batch) -> Appended:
    """Add a batch, as a request handler does, unless it was added before."""
    async with sessions.begin() as session:
        return await usage.append(session, batch.events, producer=batch.meter, seq=batch.number)


async def take_all(sessions: Sessions, batches: Sequence[Batch], *, day: date) -> int:
    """Take the batches of a day, all at once; return how many were new."""
    taken = await asyncio.gather(*(take(sessions, batch) for batch in batches))
    if taken and is_last_of_month(day):
        # The month is that of the step, and what arrives in a month is to be on its invoice.
        newest = max(taken, key=attrgetter("last"))
        await metering.wait_for(sessions, newest, timeout=WAIT_S)
    return sum(one.is_new for one in taken)


async def main(folder: Path, sender: int) -> None:
    """Take the batches of each day that the example names."""
    async with opened(folder) as database:
        print("ready", flush=True)
        while line := await next_line():
            day = date.fromisoformat(line)
            arrived = [one.batch for one in attempts() if (one.day, one.sender) == (day, sender)]
            print(await take_all(database.session_factory, arrived, day=day), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
