"""A replica's line to the database, which can be cut: for a while, or for good.

The one idea: a replica dies by not reaching the database any more. From then on every statement and
every COMMIT of its engine is refused, whatever its tasks still try; so nothing is released, and its
leases stay until they expire. Nothing is mocked: what gets through is a real statement, and a
transaction that was under way is rolled back by the driver.

Not here: the tasks of a dead replica, which whoever kills it cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker


class Line:
    """The statements of one replica on their way.

    Attributes:
        is_cut: nothing gets through.
        loses_answer: the next COMMIT is made, and its answer lost.
    """

    def __init__(self, on_transaction: Callable[[], None]) -> None:
        self.is_cut = False
        self.loses_answer = False
        self._on_transaction = on_transaction
        self._left: int | None = None
        self._on_death: Callable[[], None] = lambda: None

    def die_in(self, statements: int, on_death: Callable[[], None]) -> None:
        """Cut the line after so many more statements and COMMITs, and call `on_death` then."""
        self._left, self._on_death = statements, on_death

    def recover(self) -> None:
        self.is_cut = self.loses_answer = False
        self._left = None

    def on_execute(self, *arguments: Any) -> None:
        if arguments[2].startswith("BEGIN"):
            self._on_transaction()
        self._pass()

    def on_commit(self, connection: Connection) -> None:
        self._pass()
        if self.loses_answer:
            self.loses_answer = False
            driver: Any = connection.connection.dbapi_connection
            driver.commit()
            raise ConnectionResetError("the answer to COMMIT was lost")

    def _pass(self) -> None:
        if self._left is not None and not self.is_cut:
            self._left -= 1
            if self._left < 0:
                self.is_cut = True
                self._on_death()
        if self.is_cut:
            raise ConnectionRefusedError("the line to the database is cut")


class Exchange:
    """An engine that is used by one replica after another, each with a line of its own.

    Attributes:
        session_factory: sessions on the engine.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.session_factory: async_sessionmaker[AsyncSession] = async_sessionmaker(
            engine, expire_on_commit=False
        )
        self.line = Line(lambda: None)
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda *a: self.line.on_execute(a[0], a[1], a[2]),
        )
        event.listen(engine.sync_engine, "commit", self._on_commit)

    def _on_commit(self, connection: Connection) -> None:
        # Asked at each COMMIT: the line changes with the replica.
        self.line.on_commit(connection)
