"""The words of a part of the standard library are counted by three processes, in two stages; one of
them is killed, another one is frozen until it has lost its leases, and thaws. The counts are right.

The one idea: a shard of the work is a leased row, so a process that dies or stands still loses its
shards, and nothing else: whoever has them next does the same steps from where they were written.
Within a step words go to the shard that owns them, and wait there for those who are late.

Run it: ``python examples/16_count_words.py`` (not on Windows). The processes are
``examples/counting/replica.py``; what they do is in ``examples/counting/streams.py``. It ends by
itself and leaves nothing behind, and fails unless its counts are those of a plain loop.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from counting.streams import SHARDS, Line, lines, totals, words
from counting.tables import Base
from counting.texts import Piece, counted, pieces
from loopback.child import Child, started
from loopback.database import Sessions, opened
from loopback.holders import shards_held
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from rowlock.streams import Appended

REPLICAS = 3
STEPS_BEFORE = 4
"""After so many steps one process is killed, and another one frozen."""
POLL_S = 0.1
WAIT_S_MAX = 240.0
"""After so long the example gives up."""


async def append(sessions: Sessions, some: Sequence[Piece]) -> Appended:
    """Add lines, some in each transaction; return where the last ones are."""
    added: Appended | None = None
    for piece in some:
        async with sessions.begin() as session:
            events = [Line(piece.file, line) for line in piece.lines]
            added = await lines.append(session, events, producer=piece.file, seq=piece.number)
    assert added is not None, "there is one piece at least"
    return added


async def freeze(child: Child, sessions: Sessions) -> None:
    """Freeze a process while it writes nothing: SQLite has one writer, and if that stands still,
    all do.
    """
    while True:
        child.freeze()
        try:
            async with sessions.begin() as session:
                await session.execute(text("BEGIN IMMEDIATE"))
        except OperationalError:
            child.thaw()
            await asyncio.sleep(POLL_S)
        else:
            return


async def disturb(replicas: Sequence[Child], sessions: Sessions) -> None:
    """Kill one process and freeze another one, until a third one has all their shards."""
    killed, frozen, _ = replicas
    had = await shards_held(words, sessions, replicas)
    await killed.kill()
    print(f"killed: a process with {had[0]} shards", flush=True)
    await freeze(frozen, sessions)
    print(f"frozen: a process with {had[1]} shards", flush=True)
    while (await shards_held(words, sessions, replicas))[2] < SHARDS:  # noqa: ASYNC110  # theirs end
        await asyncio.sleep(POLL_S)
    print(f"when their leases had ended: the third process has all {SHARDS}", flush=True)
    frozen.thaw()  # what it was about to write is refused: it finds its tokens no more


async def count(sessions: Sessions, url: str) -> None:
    """Have the lines counted by three processes, and disturb them while there is much to do."""
    some = list(pieces())
    half = len(some) // 2
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(started("counting.replica", url))
            for _ in range(REPLICAS)
        ]
        while not all(await shards_held(words, sessions, replicas)):  # noqa: ASYNC110  # they share shards
            await asyncio.sleep(POLL_S)
        await append(sessions, some[:half])
        while await frontier(sessions) < STEPS_BEFORE:  # noqa: ASYNC110  # others do the steps
            await asyncio.sleep(POLL_S)
        await disturb(replicas, sessions)
        newest = await append(sessions, some[half:])
        steps = await words.wait_for(sessions, newest, timeout=WAIT_S_MAX)
        print(f"all lines were counted, in {steps} steps", flush=True)
        for replica in replicas[1:]:
            await replica.end()


async def frontier(sessions: Sessions) -> int:
    """Return how many steps are done by all."""
    async with sessions() as session:
        return (await words.status(session)).frontier


async def found_words(sessions: Sessions) -> Counter[str]:
    """Return the last result of each word."""
    last: dict[str, int] = {}
    async for result in totals.consume(sessions, follow=False):
        last |= {str(row.key): row.value for row in result.rows}
    return Counter(last)


def recount(found: Counter[str]) -> bool:
    """Compare the counts with those of a plain loop; return whether they are the same."""
    expected = counted()
    lost, surplus = expected - found, found - expected
    print(f"{len(found)} words, {found.total()} times")
    print(f"not counted: {lost.total()}, counted too often: {surplus.total()}")
    return found == expected


async def main(url: str) -> bool:
    """Count, and recount."""
    async with asyncio.timeout(WAIT_S_MAX), opened(url) as sessions:
        async with sessions.begin() as session:
            connection = await session.connection()
            await connection.run_sync(Base.metadata.create_all)
        await count(sessions, url)
        return recount(await found_words(sessions))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        is_right = asyncio.run(main(f"sqlite+aiosqlite:///{Path(temporary) / 'app.db'}"))
    sys.exit(0 if is_right else 1)
