"""A replica dies, or freezes past its leases, at the boundaries of the statements of an ingest;
another one finishes the documents.

A sample of the boundaries by default; all of them with ``ROWLOCK_GRAPH_BOUNDARIES=all``.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text

from rowlock.testing import TemporaryDatabase, stepping

from ...failpoints.survivors import Nursery, may_be_written, shared_clock, wait_for_the_server
from ...simulator.judge.checker import check
from ...simulator.judge.history import HISTORY_TABLE, install_historian, read_history
from .ingest import CHUNKS, STORIES, URLS, Base, Document, Ingest, Outside, work_on_all

pytestmark = pytest.mark.either_database

STORY = STORIES["ingest"]
SAMPLED = 8
"""How many boundaries are tried of each kind, on each database, unless all are."""
SEED = 17
FAR = 10_000
"""More boundaries than there are."""
BOUNDARIES_MIN = 8
COMES_AFTER = timedelta(seconds=1)
"""How long after the leases of the dead have ended the heir comes."""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery("tests.graph.crashes.ingest")
    yield made
    made.close()


class Scene:
    """One database, what is outside, and a replica after another."""

    def __init__(self, database: TemporaryDatabase, nursery: Nursery, folder: Path) -> None:
        self.database = database
        self.outside = Outside(folder)
        self.indexed_before: set[str] = set()
        self._nursery = nursery
        self._clock = folder / "clock"

    async def boundaries(self) -> int:
        await self.database.create_tables(Base.metadata)
        async with self.database.engine.begin() as connection:
            await install_historian(connection, [Document], also={Document: ["status"]})
        await self.set_up()
        with shared_clock(self.database, self._clock):
            assert self.replica(FAR, act="die") == 0
        return int(next(one["boundaries"] for one in self.outside.calls() if one["call"] == "end"))

    async def set_up(self) -> None:
        self.outside.forget()
        async with self.database.session_factory.begin() as session:
            for table in (Document.__tablename__, HISTORY_TABLE):
                await session.execute(text(f"DELETE FROM {table}"))
            session.add_all(STORY.rows())

    def replica(self, at: int, *, act: str) -> int | None:
        """Have a replica index; return its exit code, None if it is frozen."""
        return self._nursery.replica(STORY, self.database, at=at, act=act, clock=self._clock)

    def thaw(self) -> None:
        """Let the frozen replica go on to its end."""
        assert self._nursery.thaw() == 0

    async def is_free(self) -> bool:
        """Return whether no one is in the middle of a transaction."""
        return await may_be_written(self.database, [Document])

    async def finish(self) -> None:
        """Be another replica, right after the leases of the first one have ended."""
        await wait_for_the_server(self.database, [Document])
        self.indexed_before = {row.url for row in await self.rows() if row.status == "indexed"}
        heir = Ingest(self.outside)
        assert self.database.clock is not None
        self.database.clock.advance(heir.settings.lock_timeout + COMES_AFTER)
        async with stepping(self.database.session_factory, heir) as steps:
            await work_on_all(steps)

    async def rows(self) -> list[Document]:
        async with self.database.session_factory() as session:
            return list(await session.scalars(select(Document)))

    async def judge(self) -> None:
        """Each document is indexed once, no vector is missing, and no call was made for it that
        was not needed.
        """
        for row in await self.rows():
            assert (row.status, row.text) == ("indexed", f"text of {row.url}")
        violations = check(
            await self.history(),
            settled=lambda _table, row: row.values["status"] == "indexed",
            stopped=True,
            taken_within=COMES_AFTER,
            attempts_max=Ingest(self.outside).settings.max_attempts,
            lock_timeouts={"Ingest": timedelta(seconds=30)},
        )
        assert violations == [], "\n".join(map(str, violations))
        stored, made = {}, Counter[tuple[object, ...]]()
        for one in self.outside.calls():
            if one["call"] == "store":
                stored[one["url"]] = one["vectors"]
            for chunk in one.get("chunks", ()):
                made[one["by"], "embed", chunk] += 1
            if "url" in one:
                made[one["by"], one["call"], one["url"]] += 1
        chunks = {url: [f"{url} {number}" for number in range(CHUNKS)] for url in URLS}
        assert stored == {url: [f"vector of {one}" for one in chunks[url]] for url in URLS}
        assert set(made.values()) == {1}, "a replica made a call twice"
        again = {what.split()[0] for by, _, what in made if by == os.getpid()}  # type: ignore[attr-defined]
        assert again == set(URLS) - self.indexed_before

    async def history(self) -> list[object]:
        async with self.database.engine.connect() as connection:
            return await read_history(connection)  # type: ignore[return-value]


@pytest.fixture
def scene(
    database_with_clock: TemporaryDatabase, nursery: Nursery, tmp_path: Path
) -> Iterator[Scene]:
    with shared_clock(database_with_clock, tmp_path / "clock"):
        yield Scene(database_with_clock, nursery, tmp_path)


def chosen(boundaries: int) -> list[int]:
    every = range(boundaries)
    if os.environ.get("ROWLOCK_GRAPH_BOUNDARIES") == "all":
        return list(every)
    return sorted(random.Random(SEED).sample(every, SAMPLED))


async def test_killed_at_boundaries(scene: Scene) -> None:
    """kill -9 in an ingest would lose a document or a vector, or index one twice."""
    boundaries = await scene.boundaries()
    assert boundaries >= BOUNDARIES_MIN
    for at in chosen(boundaries):
        await scene.set_up()
        # Threads and shared calls are not quite the same in each run: the last may not be reached.
        assert scene.replica(at, act="die") in {0, -signal.SIGKILL}
        await scene.finish()
        await scene.judge()


async def test_frozen_at_boundaries(scene: Scene) -> None:
    """A replica that was frozen past its leases would overwrite what its heir has written."""
    overtaken = 0
    for at in chosen(await scene.boundaries()):
        await scene.set_up()
        code = scene.replica(at, act="freeze")
        if code is None and await scene.is_free():
            await scene.finish()
            before, overtaken = await scene.history(), overtaken + 1
            scene.thaw()
            assert await scene.history() == before, f"thawed at boundary {at}, it wrote something"
        else:
            # In the middle of a transaction all wait for it; then it was only slow.
            if code is None:
                scene.thaw()
            await scene.finish()
        await scene.judge()
    assert overtaken > 1
