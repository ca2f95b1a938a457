"""One run of late commits: writers, the flow, and those who read beside it, until all is read; then
what is there is compared with what was read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rowlock import PipelineManager
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import run_flow

from .host import HOST, Base, Cached, column_of
from .readers import MarkWatcher, NaiveReader, OneSnapshotReader, Reader, UncheckedReader
from .writers import WAYS, Linger, Writer, into_cached

CACHED_WRITERS = 4


@dataclass(frozen=True)
class Ran:
    """What came of a run.

    Attributes:
        written: rows that are there, by the way in which they were added.
        read: how many of them the flow has read.
        missed: how many it has not.
        doubled: how many it has read more than once.
        phantoms: how many it has read that are not there.
        steps: how many it has cut.
        missed_beside: how many rows each of the others has missed, by its name.
        held_back_s: for how long the mark of each stream was held back at most.
    """

    written: Mapping[str, int]
    read: int
    missed: int
    doubled: int
    phantoms: int
    steps: int
    missed_beside: Mapping[str, int]
    held_back_s: Mapping[str, float]

    @property
    def is_right(self) -> bool:
        return not (self.missed or self.doubled or self.phantoms)

    def __str__(self) -> str:
        ways = [f"  {way:20} {rows:8,}" for way, rows in self.written.items()]
        beside = [f"  {name:40} {rows:8,}" for name, rows in self.missed_beside.items()]
        held = [f"  {name:40} {seconds:8.2f} s" for name, seconds in self.held_back_s.items()]
        return "\n".join(
            (
                f"{sum(self.written.values()):,} rows, by the way in which they were added:",
                *ways,
                f"the flow read {self.read:,} in {self.steps:,} steps: {self.missed:,} missed,"
                f" {self.doubled:,} doubled",
                "missed by those who read beside it:",
                *beside,
                "the mark was held back for, at most:",
                *held,
            )
        )


async def run(
    database: TemporaryDatabase,
    *,
    writers: int,
    linger: Linger,
    goes_on: Callable[[int], bool],
    rest: Callable[[], Awaitable[None]],
    seed: int = 1,
) -> Ran:
    """Have writers add rows while the flow and others read them.

    Args:
        database: an empty one, of a server that allows prepared transactions.
        writers: how many; they add in all ways in turn.
        linger: awaited by each of them while its rows are not visible.
        goes_on: whether a writer that has made so many transactions makes another one.
        rest: awaited between two looks of those who read beside the flow.
        seed: of what is drawn.
    """
    await database.create_tables(Base.metadata)
    names = [(f"{WAYS[number % len(WAYS)].__name__} {number}", number) for number in range(writers)]
    engine = database.create_engine(pool_size=writers + CACHED_WRITERS)
    made = [Writer(engine, name, Random(seed * 1000 + n), linger) for name, n in names]
    cached = [
        Writer(engine, f"cached {n}", Random(seed * 1000 - n - 1), linger)
        for n in range(CACHED_WRITERS)
    ]
    reading = Reading(database, rest)
    async with PipelineManager(database.session_factory, HOST.streams.pipelines()):
        beside = asyncio.create_task(reading.read())
        async with asyncio.TaskGroup() as adding:
            for number, writer in enumerate(made):
                adding.create_task(_write(writer, WAYS[number % len(WAYS)], goes_on))
            for writer in cached:
                adding.create_task(_write(writer, into_cached, goes_on))
        reading.is_over = True
        await beside
    record = await run_flow(database.session_factory, HOST.flow)
    return await reading.judged(steps=record.next_step)


async def _write(
    writer: Writer, add: Callable[[Writer], Awaitable[None]], goes_on: Callable[[int], bool]
) -> None:
    done = 0
    while goes_on(done):
        await add(writer)
        done += 1


class Reading:
    """All who read beside the flow.

    Attributes:
        is_over: nothing is written any more.
    """

    def __init__(self, database: TemporaryDatabase, rest: Callable[[], Awaitable[None]]) -> None:
        self.is_over = False
        self._engine = engine = database.create_engine(pool_size=10)
        self._rest = rest
        positions, arrivals = HOST.positions, HOST.positions["arrivals"]
        self._naive = [NaiveReader(engine, position) for position in positions.values()]
        self._one_snapshot = [OneSnapshotReader(engine, arrivals)]
        self._unchecked = [UncheckedReader(engine, column_of(Cached, "position"))]
        sources = HOST.flow.program.sources
        self._watchers = {
            name: MarkWatcher(engine, source.watcher()) for name, source in sources.items()
        }

    async def read(self) -> None:
        every: Sequence[Reader] = (
            *self._naive,
            *self._one_snapshot,
            *self._unchecked,
            *self._watchers.values(),
        )
        async with asyncio.TaskGroup() as looking:
            for one in every:
                looking.create_task(self._read_on(one))

    async def _read_on(self, reader: Reader) -> None:
        is_last = False
        while not is_last:
            is_last = self.is_over
            await reader.look()
            await self._rest()

    async def judged(self, *, steps: int) -> Ran:
        """Return what each has read of what is there."""
        written = await HOST.written(self._engine)
        read = await HOST.processed(self._engine)
        ways: Counter[str] = Counter()
        for noted in written:
            ways[noted.writer.rpartition(" ")[0]] += 1
        by_name = {
            "behind the last position": self._naive,
            "mark and rows in REPEATABLE READ": self._one_snapshot,
            "the mark of a sequence with CACHE": self._unchecked,
        }
        return Ran(
            written=dict(sorted(ways.items())),
            read=read.total(),
            missed=(written - read).total(),
            doubled=sum(count - 1 for count in read.values()),
            phantoms=len(read.keys() - written.keys()),
            steps=steps,
            missed_beside={
                name: sum([await one.missed() for one in readers])
                for name, readers in by_name.items()
            },
            held_back_s={name: one.longest_s for name, one in self._watchers.items()},
        )
