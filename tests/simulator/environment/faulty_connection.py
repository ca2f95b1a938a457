"""A process's way to the database, on which everything can go wrong: delays, cuts, outages, answers
that are lost.

The one idea: every statement and every COMMIT passes twice, on the way there and on the way back,
and at each passing something may happen that was arranged before. What gets through is a real
statement on a real connection. A connection that is lost is rolled back, as a server does with a
client that is gone; what was committed stays.

Not here: what is arranged and when (``faults.py``), and the engine (``engines.py``).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from rowlock.testing import DatabaseClock
from rowlock.testing.database_clock import follow_on_connection
from rowlock.testing.inline_sqlite import InlineConnection

if TYPE_CHECKING:
    from pathlib import Path

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for the file's lock. **Unit** virtual seconds."""


class SimulatedConnection(InlineConnection):
    def __init__(
        self, path: Path, faulty_connection: FaultyConnection, clock: DatabaseClock
    ) -> None:
        super().__init__(path, busy_timeout_s=faulty_connection.busy_timeout_s)
        self.faulty_connection = faulty_connection
        self._raw = self.sqlite3_connection
        follow_on_connection(self._raw, clock)
        self._raw.execute("PRAGMA synchronous=OFF")
        faulty_connection.connections[self] = None

    async def call(self, function: Callable[[], Any], *, commits: bool = False) -> Any:
        faulty_connection = self.faulty_connection
        try:
            await faulty_connection.pass_by(self, commits=commits, answer=False)
            result = await super().call(
                partial(_commit, function, faulty_connection) if commits else function,
                commits=commits,
            )
            await faulty_connection.pass_by(self, commits=commits, answer=True)
        except BaseException:
            faulty_connection.failures += 1
            raise
        return result

    async def rollback(self) -> None:
        """Roll back; as PostgreSQL's drivers do, send nothing where no transaction is open."""
        is_sent = self.in_transaction
        await super().rollback()
        if is_sent and self.faulty_connection.round_trip_s:
            await asyncio.sleep(self.faulty_connection.round_trip_s)

    async def close(self) -> None:
        """Run what is queued, roll back, then close: a server ends what a client has left open."""
        if self._connection is not None:
            await self.run(self.drop)
            await super().close()

    def stop(self) -> None:
        self._connection = None
        self.drop()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; of one that is closed, none is."""
        return self in self.faulty_connection.connections and self._raw.in_transaction

    def drop(self) -> None:
        """Lose the connection: what is open is rolled back, and whoever uses it is told that it
        is closed.
        """
        self.faulty_connection.connections.pop(self, None)
        # Closed alone, SQLite would keep the transaction open until the last cursor is gone, which
        # may lie in some traceback.
        with suppress(sqlite3.ProgrammingError):
            self._raw.rollback()
        self._raw.close()


@dataclass(slots=True, eq=False)
class Trouble:
    """Something that happens once on the way.

    Attributes:
        act: what happens; it may raise, or never return.
        left: after how many passings more.
        commits: whether only COMMITs count.
        answers: whether it meets the answer, and not the statement.
    """

    act: Callable[[SimulatedConnection], Awaitable[None]]
    left: int
    commits: bool
    answers: bool

    def is_met(self, *, commits: bool, answer: bool) -> bool:
        if answer is not self.answers or (self.commits and not commits):
            return False
        self.left -= 1
        return self.left < 0


class FaultyConnection:
    """One process's way to the database.

    Attributes:
        round_trip_s: how long every statement travels, half of it each way; that of a ROLLBACK is
            its answer's.
        latency_s: how long one way takes besides, on average.
        is_open: whether anything gets through.
        hangs: whether what does not get through is told so only when the line is open again.
        busy_timeout_s: how long a statement waits for the file's lock.
        is_gone: its process is a ghost; nothing will ever get through.
        troubles: what is arranged.
        failures: how often something did not get through, or was not waited for.
        connections: those that are open, in order.
        on_commit: called after each COMMIT that was made, before its answer is on the way.
    """

    def __init__(self, rng: Random, *, on_commit: Callable[[], None] = lambda: None) -> None:
        self.round_trip_s = 0.0
        self.latency_s = 0.0
        self.is_open = True
        self.hangs = False
        self.busy_timeout_s = BUSY_TIMEOUT_S
        self.is_gone = False
        self.failures = 0
        self.troubles: list[Trouble] = []
        self.connections: dict[SimulatedConnection, None] = {}
        self.on_commit = on_commit
        self._rng = rng
        self._opened = asyncio.Event()

    async def connect(self, path: Path, clock: DatabaseClock) -> SimulatedConnection:
        await self._travel()
        if not self.is_open or self.is_gone:
            self.failures += 1
            await self._wait_if_it_hangs()
            raise ConnectionRefusedError("the database cannot be reached")
        return SimulatedConnection(path, self, clock)

    async def pass_by(
        self, connection: SimulatedConnection, *, commits: bool, answer: bool
    ) -> None:
        if self.is_gone:
            connection.drop()
            raise lost()
        await self._travel()
        for trouble in [one for one in self.troubles if one.is_met(commits=commits, answer=answer)]:
            self.troubles.remove(trouble)
            await trouble.act(connection)
        if not self.is_open:
            connection.drop()
            await self._wait_if_it_hangs()
            raise lost()

    def cut(self, *, hangs: bool) -> None:
        self.is_open, self.hangs = False, hangs
        self._opened.clear()
        self.drop_all()

    def heal(self) -> None:
        self.is_open = True
        self._opened.set()

    def drop_all(self) -> None:
        for connection in list(self.connections):
            connection.drop()

    async def _travel(self) -> None:
        way_s = self.round_trip_s / 2
        if self.latency_s:
            way_s += self._rng.uniform(0, 2 * self.latency_s)
        if way_s:
            await asyncio.sleep(way_s)

    async def _wait_if_it_hangs(self) -> None:
        if self.hangs and not self.is_gone:
            await self._opened.wait()


def _commit(function: Callable[[], Any], faulty_connection: FaultyConnection) -> Any:
    result = function()
    # In the same turn: by the next one its process may be dead, or another's COMMIT be made.
    faulty_connection.on_commit()
    return result


def lost() -> Exception:
    """Return what a driver says of a connection that is lost."""
    return sqlite3.OperationalError("connection closed: the other side is gone")
