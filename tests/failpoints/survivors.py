"""How these tests set a scene, start replicas, have an heir finish their stories, and judge what
the database has seen.

The historian and the judge are those of `rowlock.testing`. What is judged here besides is what only
a host knows of its own column `status`: that each row was written once, under a lease, and that an
outcome was written whole.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Base, Run, Volume
from ..leases.transactions import file_may_be_written
from ..simulator.judge.checker import check
from ..simulator.judge.history import (
    HISTORY_TABLE,
    Change,
    RowState,
    install_historian,
    read_history,
)
from ..simulator.judge.state import place_of
from .nursery import CLOCK, REPLICA_S_MAX
from .stories import Story

ROOT: Final = Path(__file__).resolve().parents[2]
ATTACHMENTS: Final = 2
COMES_AFTER: Final = timedelta(seconds=1)
"""How long after the leases of the dead have ended the heir comes; nobody may look after them
later than that.
"""
LOOKS_EVERY_S: Final = 0.002
LOOKS_MAX: Final = 5000
SETTLED: Final = {"active", "done", "gathered"}
WATCHED: Final[dict[type[Any], list[str]]] = {
    Volume: ["status"],
    Attachment: ["status"],
    Run: ["status"],
}


class Nursery:
    """The process that makes replicas."""

    def __init__(self, stories: str = "tests.failpoints.stories") -> None:
        """Start it for the stories of a module, and wait until it is warm."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.failpoints.nursery", stories],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear()

    def replica(
        self, story: Story, database: TemporaryDatabase, *, at: int | str, act: str, clock: Path
    ) -> int | None:
        """Have a replica play `story`, in which something happens at a boundary, or before a
        statement that begins so; return its exit code, or None if it is frozen now.
        """
        url = database.url.render_as_string(hide_password=False)
        return self._say(story=story.name, url=url, at=at, act=act, clock=str(clock))

    def thaw(self) -> int | None:
        """Let the frozen replica go on to its end."""
        return self._say(thaw=True)

    def close(self) -> None:
        """End it, with a replica that it may still have."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(REPLICA_S_MAX)
        self._process.stdout.close()

    def _say(self, **order: object) -> int | None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        told = self._hear()
        return None if told["stopped"] else int(told["code"])

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert wait([self._process.stdout], REPLICA_S_MAX + 5), "a replica hangs"
        heard: dict[str, Any] = json.loads(self._process.stdout.readline())
        return heard


@contextmanager
def shared_clock(database: TemporaryDatabase, path: Path) -> Iterator[Path]:
    """Have the clock of `database` written to a file, for replicas on SQLite."""
    assert database.clock is not None
    database.clock.add_follower(lambda now: _replace(path, CLOCK.pack(now.timestamp())))
    yield path


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


async def make_tables(database: TemporaryDatabase) -> None:
    """Make the tables with their historian."""
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await install_historian(connection, WATCHED, also=WATCHED)


async def set_scene(database: TemporaryDatabase, story: Story) -> None:
    """Put the rows of `story` in, and forget those of the last one."""
    rows = story.rows()
    async with database.session_factory.begin() as session:
        for table in (
            Attachment.__tablename__,
            Volume.__tablename__,
            Run.__tablename__,
            HISTORY_TABLE,
        ):
            await session.execute(text(f"DELETE FROM {table}"))
        session.add_all(rows)
        await session.flush()
        for row in rows:
            if isinstance(row, Volume):
                session.add_all(
                    [Attachment(volume_id=row.id, name=str(n)) for n in range(ATTACHMENTS)]
                )


_AT_WORK = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <>"
    " pg_backend_pid() AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'"
)
"""How many others have a statement that is being carried out."""


async def may_be_written(
    database: TemporaryDatabase, models: Iterable[type[Any]] = tuple(WATCHED)
) -> bool:
    """Whether nobody is in the middle of a transaction that others would have to wait for."""
    if database.dialect_name == "sqlite":
        return file_may_be_written(database)
    # What another connection of a frozen replica has sent may still be on its way to its first
    # lock.
    for _ in range(LOOKS_MAX):
        async with database.engine.connect() as connection:
            if not await connection.scalar(_AT_WORK):
                break
        await asyncio.sleep(LOOKS_EVERY_S)
    try:
        async with database.engine.begin() as connection:
            for model in models:
                await connection.execute(
                    text(f"SELECT id FROM {model.__tablename__} FOR UPDATE NOWAIT")
                )
    except DBAPIError as error:
        if "could not obtain lock" not in str(error):
            raise
        return False
    return True


async def wait_for_the_server(
    database: TemporaryDatabase, models: Iterable[type[Any]] = tuple(WATCHED)
) -> None:
    """Wait until the server has noticed that a replica is dead, and has rolled its transaction
    back.
    """
    for _ in range(LOOKS_MAX):
        if await may_be_written(database, models):
            return
        await asyncio.sleep(LOOKS_EVERY_S)
    raise AssertionError("the transaction of a dead replica is still open")


async def finish(database: TemporaryDatabase, story: Story) -> None:
    """Be another replica that looks once, right after the leases of a dead one have ended."""
    assert database.clock is not None
    heir = story.heir()
    database.clock.advance(heir.settings.lock_timeout + COMES_AFTER)
    async with stepping(database.session_factory, heir) as steps:
        await steps.fetch_once()
        await steps.work_all()


async def history(database: TemporaryDatabase) -> list[Change]:
    """Return what has happened since the scene was set."""
    async with database.engine.connect() as connection:
        return await read_history(connection)


async def judge(database: TemporaryDatabase, story: Story) -> None:
    """Check that the story is finished, at the heir's first look, and that no promise was broken
    on the way.
    """
    heir, changes = story.heir(), await history(database)

    def settled(table: str, row: RowState) -> bool:
        is_asked_for = table != Attachment.__tablename__ or heir.locks
        return not is_asked_for or row.values["status"] in SETTLED

    violations = check(
        changes,
        settled=settled,
        stopped=True,
        taken_within=COMES_AFTER,
        attempts_max=heir.settings.max_attempts,
        lock_timeouts={heir.name: heir.settings.lock_timeout},
    )
    assert violations == [], "\n".join(map(str, violations))
    written = [
        one for one in changes if one.before and one.after and one.before.values != one.after.values
    ]
    assert [one for one in written if one.before is None or one.before.lock_token is None] == [], (
        "written without a lease"
    )
    assert max(Counter(map(place_of, written)).values()) == 1, "a row was settled twice"
