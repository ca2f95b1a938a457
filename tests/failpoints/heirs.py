"""How these tests set a scene, start replicas, have an heir finish their stories, and judge what the database has seen.

The database is the historian: triggers note every row that was settled and under which token, whoever says what of it.
"""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rowlock import Pipeline
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..host import Attachment, Base, Run, Volume
from ..leases.transactions import file_may_be_written
from ..pipelines.scenes import read_all
from .nursery import CLOCK, REPLICA_S_MAX
from .stories import Story

ROOT: Final = Path(__file__).resolve().parents[2]
ATTACHMENTS: Final = 2
LEASE_S: Final = 31
ROUNDS_MAX: Final = 6
LOOKS_EVERY_S: Final = 0.002
LOOKS_MAX: Final = 5000
TABLES: Final = (Volume, Attachment, Run)

_NOTED = "NEW.status <> OLD.status OR NEW.last_processed_at IS DISTINCT FROM OLD.last_processed_at"
_NOTE = "INSERT INTO history VALUES ('{table}', {key}, OLD.lock_token, OLD.status, NEW.status)"
HISTORIANS: Final = {
    "sqlite": """CREATE TRIGGER historian_{table} AFTER UPDATE ON {table} WHEN {noted} BEGIN {note}; END""",
    "postgresql": """CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note}; RETURN NEW; END $$;
        CREATE TRIGGER historian_{table} AFTER UPDATE ON {table} FOR EACH ROW WHEN ({noted}) EXECUTE FUNCTION note_{table}()""",
}


class Nursery:
    """The process that makes replicas."""

    def __init__(self) -> None:
        """Start it and wait until it is warm."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.failpoints.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear()

    def replica(self, story: Story, database: TemporaryDatabase, *, at: int, act: str, clock: Path) -> int | None:
        """Have a replica play `story`; return its exit code, or None if it is frozen now."""
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
        assert select.select([self._process.stdout], [], [], REPLICA_S_MAX + 5)[0], "a replica hangs"
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
    trigger = HISTORIANS[database.dialect_name]
    async with database.engine.begin() as connection:
        await connection.execute(
            text("CREATE TABLE history (of_table TEXT, row_key TEXT, token TEXT, was TEXT, became TEXT)")
        )
        for model in TABLES:
            table = model.__tablename__
            note = _NOTE.format(table=table, key="NEW.id")
            for statement in trigger.format(table=table, noted=_NOTED, note=note).split("$$;"):
                closed = statement + "$$" if statement.count("$$") == 1 else statement
                await connection.execute(text(closed))


async def set_scene(database: TemporaryDatabase, story: Story) -> None:
    """Put the rows of `story` in, and forget those of the last one."""
    rows = story.rows()
    async with database.session_factory.begin() as session:
        for table in ("history", Attachment.__tablename__, Volume.__tablename__, Run.__tablename__):
            await session.execute(text(f"DELETE FROM {table}"))
        session.add_all(rows)
        await session.flush()
        for row in rows:
            if isinstance(row, Volume):
                session.add_all([Attachment(volume_id=row.id, name=str(n)) for n in range(ATTACHMENTS)])


async def may_be_written(database: TemporaryDatabase) -> bool:
    """Whether nobody is in the middle of a transaction that others would have to wait for."""
    if database.dialect_name == "sqlite":
        return file_may_be_written(database)
    try:
        async with database.engine.begin() as connection:
            for model in TABLES:
                await connection.execute(text(f"SELECT id FROM {model.__tablename__} FOR UPDATE NOWAIT"))
    except DBAPIError as error:
        if "could not obtain lock" not in str(error):
            raise
        return False
    return True


async def wait_for_the_server(database: TemporaryDatabase) -> None:
    """Wait until the server has noticed that a replica is dead, and has rolled its transaction back."""
    for _ in range(LOOKS_MAX):
        if await may_be_written(database):
            return
        await asyncio.sleep(LOOKS_EVERY_S)
    raise AssertionError("the transaction of a dead replica is still open")


async def finish(database: TemporaryDatabase, heirs: Sequence[Pipeline[Any]]) -> None:
    """Work off all rows as another replica, from the moment at which leases of a dead one have expired."""
    assert database.clock is not None
    for _ in range(ROUNDS_MAX):
        database.clock.advance(LEASE_S)
        await run_until_settled(database.session_factory, heirs)
        if not await unsettled(database):
            return
    raise AssertionError(f"not settled by the heir: {await unsettled(database)}")


async def unsettled(database: TemporaryDatabase) -> list[str]:
    """Return the rows that still want work. Attachments belong to their volumes here."""
    rows = [*await read_all(database, Volume), *await read_all(database, Run)]
    return [f"{type(row).__name__} {row.id} {row.status}" for row in rows if row.status not in {"active", "done"}]


async def leased(database: TemporaryDatabase) -> list[str]:
    """Return the rows that somebody holds."""
    rows = [row for model in TABLES for row in await read_all(database, model)]
    return [f"{row.__tablename__} {row.id} by {row.lock_owner}" for row in rows if row.lock_token is not None]


async def judge(database: TemporaryDatabase) -> None:
    """Check that each row was settled once, no claim twice, and that nothing is locked."""
    assert await unsettled(database) == []
    rows = [row for model in TABLES for row in await read_all(database, model)]
    locks = {f"{row.__tablename__} {row.id}": (row.lock_token, row.lock_owner, row.lock_expires_at) for row in rows}
    assert {key: columns for key, columns in locks.items() if any(columns)} == {}
    async with database.engine.connect() as connection:
        noted = (await connection.execute(text("SELECT * FROM history"))).all()
    by_token = Counter((table, key, token) for table, key, token, *_ in noted)
    assert [claim for claim, times in by_token.items() if times > 1] == [], "a claim was applied twice"
    assert [note for note in noted if note[2] is None] == [], "a row was settled that nobody had claimed"
    changes = Counter((table, key) for table, key, _, was, became in noted if was != became)
    assert set(changes.values()) <= {1}, "a row was settled twice"


async def times_noted(database: TemporaryDatabase) -> int:
    """Return how often anything was settled."""
    async with database.engine.connect() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM history")) or 0)
