"""The process that writes invoices. The first one is killed at the worst moment: all rows of a step
are written, and nothing is committed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from loopback.child import next_line

from rowlock.streams import StepOutput

from .place import Sessions, opened
from .streams import InvoiceLine, Line, lines


async def bill(sessions: Sessions, *, dies_with: int) -> None:
    """Write invoices for whole steps, in their order, each once.

    It dies in the step in which it comes to so many lines.
    """
    done = 0
    async for result in lines.consume(sessions, consumer="billing"):
        done += len(result.values)
        await write(sessions, result, dies=done >= dies_with)


async def write(sessions: Sessions, result: StepOutput[Line], *, dies: bool) -> None:
    """Write the invoices of one step, and that it is done, in one transaction."""
    async with sessions.begin() as session:
        session.add_all(
            InvoiceLine(account=line.account, month=line.month, units=line.units)
            for line in result.values
        )
        await result.ack(session)  # the cursor moves with the host's own rows
        if dies:
            print(f"{len(result.values)} lines written and not committed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, dies_with: int) -> None:
    """Write invoices until the example ends."""
    async with opened(folder) as database, asyncio.TaskGroup() as group:
        billing = group.create_task(bill(database.session_factory, dies_with=dies_with))
        await next_line()
        billing.cancel()  # the group waits for its end: until then it may have a session


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
