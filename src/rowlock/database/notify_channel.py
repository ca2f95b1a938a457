"""Notifications: short texts to every process that listens at the same database, by PostgreSQL's
``LISTEN`` and ``NOTIFY``.

The one idea: a channel is one connection of its own, which hears and speaks. It is outside of the
pool, so it takes nobody's place there, and never in a transaction: a ``NOTIFY`` in one makes its
commit wait for a lock that the whole server shares. What the channel says itself comes back to it,
and is known by the server process that said it.

What is said while nobody listens is gone. A pooler in transaction mode breaks channels; polling
goes on.

Not here: what is said and when, and what to do about a channel that was lost
(``hints/notifier.py``).

Source: PostgreSQL, "NOTIFY", "LISTEN"; asyncpg, `Connection.add_listener`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.database.binds import bind_of
from rowlock.database.transaction import SessionFactory
from rowlock.errors import ConfigurationError
from rowlock.rows.leased_table import LeasedTable

CHANNEL_PREFIX = "rowlock_"
CHANNEL_BYTES_MAX = 63
"""Longest name of a channel, in bytes: PostgreSQL's limit of an identifier."""
PAYLOAD_BYTES_MAX = 1000
"""Longest text that is sent, in bytes; PostgreSQL's own limit is 8000."""
CONNECT_S_MAX = 10.0
"""How long it may take until the channel listens, in seconds."""
ANSWER_S_MAX = 5.0
"""How long the server may take to answer on the channel, in seconds."""
CLOSE_S_MAX = 2.0
"""How long a polite end may take, in seconds; then the channel is cut."""

_DRIVER = "asyncpg"


class _Driver(Protocol):
    """What is used of asyncpg's `Connection`."""

    def is_closed(self) -> bool: ...
    async def add_listener(self, channel: str, callback: Callable[..., None], /) -> None: ...
    def add_termination_listener(self, callback: Callable[..., None], /) -> None: ...
    async def execute(self, query: str, /, *args: object, timeout: float) -> str: ...
    async def fetchrow(self, query: str, /, *args: object, timeout: float) -> Any: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


class NotificationChannel:
    """A connection that listens to one channel and speaks on it. Every statement is a transaction
    of its own.

    Attributes:
        name: of the channel.
    """

    def __init__(self, driver: _Driver, name: str) -> None:
        self._driver = driver
        self.name = name

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._driver.is_closed()

    async def notify(self, payloads: Sequence[str]) -> None:
        """Send one notification for each of `payloads`; others have them when this returns."""
        statement = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
        await self._driver.execute(statement, self.name, list(payloads), timeout=ANSWER_S_MAX)

    async def check(self) -> None:
        """Ask the server whether this connection still listens.

        Raises:
            ConnectionError: it does not, so what is said is not heard.
        """
        statement = "SELECT $1 IN (SELECT pg_listening_channels()) AS listens"
        answer = await self._driver.fetchrow(statement, self.name, timeout=ANSWER_S_MAX)
        if not answer["listens"]:
            raise ConnectionError(
                f"the server has forgotten that the connection listens to {self.name}"
            )


@asynccontextmanager
async def listening(
    engine: AsyncEngine, name: str | None, *, heard: Callable[[str], None], lost: Callable[[], None]
) -> AsyncIterator[NotificationChannel]:
    """Open a channel for the time of the block; it listens from the first moment on.

    Args:
        engine: gives the connection, which leaves its pool at once; asyncpg only.
        name: names the channel; None is the schema that the connection works in.
        heard: called in the event loop with each text that another connection sent.
        lost: called in the event loop when the connection has ended.

    Raises:
        TimeoutError: the server did not answer.
    """
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(CONNECT_S_MAX):
            # Under AUTOCOMMIT what the host's own set-up of connections began is ended: in a
            # transaction, LISTEN would wait for it.
            autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
            connection = await stack.enter_async_context(autocommit.connect())
            driver: Any = (await connection.get_raw_connection()).driver_connection
            stack.push_async_callback(_hang_up, driver)
            await connection.run_sync(Connection.detach)
            here = await driver.fetchrow(
                "SELECT current_schema() AS schema, pg_backend_pid() AS pid", timeout=ANSWER_S_MAX
            )
            channel = channel_named(name or here["schema"] or "")

            def hear(*notification: Any) -> None:
                _driver, pid, _channel, payload = notification
                if pid != here["pid"]:
                    heard(payload)

            driver.add_termination_listener(lambda _driver: lost())
            await driver.add_listener(channel, hear)
        yield NotificationChannel(driver, channel)


async def _hang_up(driver: _Driver) -> None:
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await driver.close()
    except Exception:  # noqa: BLE001 - whatever is wrong with the connection, it ends here
        driver.terminate()


def channel_named(name: str) -> str:
    """Return the channel for `name`: readable if it fits, and else by the start of the name's
    SHA-256.
    """
    channel = CHANNEL_PREFIX + name
    if len(channel.encode()) <= CHANNEL_BYTES_MAX:
        return channel
    return CHANNEL_PREFIX + hashlib.sha256(name.encode()).hexdigest()[:32]


def is_payload(text: str) -> bool:
    """Whether PostgreSQL takes `text` as a payload, and it is not longer than
    `PAYLOAD_BYTES_MAX`.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= PAYLOAD_BYTES_MAX and "\x00" not in text


def check_name(name: object) -> None:
    """Check what a host calls its channel.

    Raises:
        ConfigurationError: it is no text, or PostgreSQL could not take it.
    """
    if not (isinstance(name, str) and is_payload(name)):
        raise ConfigurationError(
            f"notify is True, False, or a name of up to {PAYLOAD_BYTES_MAX} bytes under which the"
            f" replicas find each other, such as 'billing'; not {name!r:.100}"
        )


def notifying_engine(session_factory: SessionFactory, tables: Iterable[LeasedTable]) -> AsyncEngine:
    """Return the engine on which replicas reach each other: that of all `tables`, or without any,
    that of the sessions.

    Raises:
        ConfigurationError: there is none, or there are several, or it cannot listen.
    """
    session = session_factory()
    try:
        engines: set[Engine] = {bind_of(session, leased).engine for leased in tables}
        engines = engines or {session.sync_session.get_bind().engine}
    except SQLAlchemyError as error:
        raise ConfigurationError(
            "nothing says which database notify is about: bind the session factory to an engine"
            f" ({error})"
        ) from error
    if len(engines) > 1:
        raise ConfigurationError(
            "notify is about one database, and these pipelines work in several; build one"
            " PipelineManager for each"
        )
    engine = engines.pop()
    if engine.dialect.name != "postgresql":
        raise ConfigurationError(
            f"notify needs PostgreSQL; {engine.dialect.name} cannot tell other processes anything."
            " Leave it out there, where rows are found by polling: notify=engine.dialect.name =="
            " 'postgresql'"
        )
    if engine.dialect.driver != _DRIVER:
        raise ConfigurationError(
            f"notify needs the driver {_DRIVER}, not {engine.dialect.driver}; use"
            f" postgresql+{_DRIVER}://..."
        )
    return AsyncEngine(engine)
