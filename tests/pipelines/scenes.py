"""How these tests set a scene: rows put in and read back, tickets without a database, and a
database that fails on demand.

Faults are put into the real engine by SQLAlchemy's own events, so that every statement which does
get through is a real one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

from rowlock import Outcome, PipelineItem
from rowlock.clock import monotonic
from rowlock.testing import Steps, TemporaryDatabase

from ..host import Base, VolumePipeline

RowT = TypeVar("RowT")

VIRTUAL_WAIT_S_MAX: Final = 600.0
"""How long `until` waits on the virtual loop. **Unit** seconds."""
LOOK_EVERY_S: Final = 0.01


async def add(database: TemporaryDatabase, *rows: RowT) -> list[RowT]:
    for metadata in {Base.metadata, *(type(row).metadata for row in rows)}:
        await database.create_tables(metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)
    return list(rows)


async def read(database: TemporaryDatabase, row: RowT) -> RowT:
    async with database.session_factory() as session:
        found = await session.get(type(row), row.id)  # type: ignore[attr-defined]
    assert found is not None
    return found


async def read_all(database: TemporaryDatabase, model: type[RowT]) -> list[RowT]:
    async with database.session_factory() as session:
        return list((await session.scalars(select(model))).all())


async def change(database: TemporaryDatabase, row: Any, **values: Any) -> None:
    """Change `row` as a service or an administrator would, whoever holds it."""
    async with database.session_factory.begin() as session:
        found = await session.get(type(row), row.id)
        for name, value in values.items():
            setattr(found, name, value)


def replica(database: TemporaryDatabase) -> async_sessionmaker[AsyncSession]:
    """Return the sessions of one more replica, which has an engine of its own."""
    return async_sessionmaker(database.create_engine(), expire_on_commit=False)


def is_free(row: Any) -> bool:
    return (row.lock_token, row.lock_owner, row.lock_expires_at) == (None, None, None)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true; for the virtual loop, where looking again costs nothing."""
    async with asyncio.timeout(VIRTUAL_WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110 - it looks at the database and at counters, which set no event
            await asyncio.sleep(LOOK_EVERY_S)


async def turns(count: int = 20) -> None:
    """Let everybody else who is ready have `count` turns of the loop; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


def ticket(
    place: float = 0.0, *, trusted_for_s: float = 27.0, session_factory: Any = None
) -> PipelineItem[Any]:
    return PipelineItem(
        id=uuid.uuid4(),
        lock_token=uuid.uuid4(),
        lock_owner="VolumePipeline",
        lock_expires_at=datetime(2031, 5, 17, tzinfo=UTC),
        prev_lock_expired=False,
        attempt=1,
        place=place,
        claimed_at=monotonic(),
        trusted_until=monotonic() + trusted_for_s,
        session_factory=session_factory or async_sessionmaker(),
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def counted(steps: Steps[Any]) -> dict[str, int]:
    return steps.run.statistics().counters


class Work:
    """Work on an item as far as its lease is concerned: does `act` when that is lost."""

    is_abandoned = False

    def __init__(
        self, steps: Steps[Any], item: PipelineItem[Any], act: Callable[[], object]
    ) -> None:
        self._act = act
        steps.run.context.running[item.lock_token] = cast("Any", self)

    def end(self, why: object) -> None:
        del why
        self._act()


async def hang(_item: Any = None) -> None:
    await asyncio.Event().wait()


class TidyPipeline(VolumePipeline):
    """Cleans up in the loop: the virtual loop knows nothing of threads that `anyio` starts."""

    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        super().on_stale(item, outcome)


def is_renewal(statement: str) -> bool:
    return statement.startswith(("UPDATE", "WITH free")) and " SET lock_expires_at=" in statement


def is_claim(statement: str) -> bool:
    """Whether a statement looks for rows to claim, on either database."""
    return " AS dead_token" in statement


def is_sweep(statement: str) -> bool:
    return statement.startswith("UPDATE") and " LIMIT " in statement


def is_outcome(statement: str) -> bool:
    is_write = statement.startswith(("UPDATE", "WITH rowlock_free")) and (
        "last_processed_at=" in statement
    )
    return is_write or statement.startswith("DELETE")


class Faults:
    """What an engine's statements run into.

    Attributes:
        sent: each statement and the loop's time at which it was sent.
        committed: the loop's times of the commits.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[float, str]] = []
        self.committed: list[float] = []
        self._hits: Callable[[str], bool] = lambda _statement: False
        self._error: BaseException | None = None
        self._gate: asyncio.Event | None = None
        self._loses_answer_of: Callable[[str], bool] | None = None
        self._and_then: BaseException | None = None
        self._answers_late: tuple[Callable[[str], bool], float] | None = None
        self._in_transaction: dict[Connection, list[str]] = {}

    def fail(
        self, error: BaseException, *, when: Callable[[str], bool] = lambda _statement: True
    ) -> None:
        self._hits, self._error, self._gate = when, error, None

    def hang(self, *, when: Callable[[str], bool] = lambda _statement: True) -> None:
        self._hits, self._error, self._gate = when, None, asyncio.Event()

    def lose_answers_of_commits(
        self,
        *,
        when: Callable[[str], bool] = lambda _statement: True,
        and_then: BaseException | None = None,
    ) -> None:
        """Commit the next transaction with such a statement, and then raise as if the connection
        had been cut.

        From then on every statement raises `and_then`, if there is one.
        """
        self._loses_answer_of, self._and_then = when, and_then

    def block_the_loop_after_commit(self, *, when: Callable[[str], bool], seconds: float) -> None:
        """Let virtual time pass, with nothing done in it, once the next transaction with such a
        statement was committed.
        """
        self._answers_late = (when, seconds)

    def heal(self) -> None:
        self._hits = lambda _statement: False
        if self._gate is not None:
            self._gate.set()

    def count(self, when: Callable[[str], bool]) -> int:
        return sum(when(statement) for _, statement in self.sent)

    def on_execute(self, connection: Connection, *arguments: Any) -> None:
        """Note and perhaps stop a statement: the listener to ``before_cursor_execute``."""
        statement = arguments[1]
        self.sent.append((monotonic(), statement))
        self._in_transaction.setdefault(connection, []).append(statement)
        if not self._hits(statement):
            return
        if self._error is not None:
            raise self._error
        assert self._gate is not None
        await_only(self._gate.wait())

    def on_commit(self, connection: Connection) -> None:
        self.committed.append(monotonic())
        statements = self._in_transaction.pop(connection, [])
        if self._answers_late is not None and any(map(self._answers_late[0], statements)):
            loop: Any = asyncio.get_running_loop()
            loop._set_now(monotonic() + self._answers_late[1])
            self._answers_late = None
        if self._loses_answer_of is None or not any(map(self._loses_answer_of, statements)):
            return
        self._loses_answer_of = None
        driver: Any = connection.connection.dbapi_connection
        driver.commit()
        if self._and_then is not None:
            self.fail(self._and_then)
        raise ConnectionResetError("the answer to COMMIT was lost")


@contextmanager
def faults_of(engine: AsyncEngine) -> Iterator[Faults]:
    """Give a hand on the statements of `engine`, which is let alone again at the end."""
    faults = Faults()
    listeners = (("before_cursor_execute", faults.on_execute), ("commit", faults.on_commit))
    for name, listener in listeners:
        event.listen(engine.sync_engine, name, listener)
    try:
        yield faults
    finally:
        faults.heal()
        for name, listener in listeners:
            event.remove(engine.sync_engine, name, listener)
