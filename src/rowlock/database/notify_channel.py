"""Notifications: short texts to every process that listens at the same database, by PostgreSQL's
``LISTEN`` and ``NOTIFY``.

The one idea: a channel is one connection of its own, outside of the pool, and never in a
transaction: a ``NOTIFY`` in one makes its commit wait for a lock that the whole server shares.

What is said while no process listens is gone. A pooler in transaction mode breaks channels; polling
goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.database.transaction import SessionFactory, bind_of
from rowlock.dialects.contract import TRANSACTIONS, ChannelConnection
from rowlock.errors import ConfigurationError
from rowlock.rows.leased_table import LeasedTable

CHANNEL_PREFIX = "rowlock_"
CHANNEL_BYTES_MAX = 63
"""Longest name of a channel, in bytes: PostgreSQL's limit of an identifier."""
PAYLOAD_BYTES_MAX = 1000
"""Longest text that is sent, in bytes; PostgreSQL's own limit is 8000."""
CONNECT_S_MAX = 10.0
"""How long it may take until the channel listens, in seconds."""
CLOSE_S_MAX = 2.0
"""How long a polite end may take, in seconds; then the channel is cut."""


@asynccontextmanager
async def listening(
    engine: AsyncEngine, name: str | None, *, heard: Callable[[str], None], lost: Callable[[], None]
) -> AsyncIterator[ChannelConnection]:
    """Open a channel for the time of the block, on a connection that leaves the pool of `engine` at
    once; without a `name` it is named by the schema. Calls back in the event loop, with each text
    that another connection sent, and when the connection has ended.
    """
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(CONNECT_S_MAX):
            connection = await stack.enter_async_context(engine.connect())
            # The pool would roll back on a connection that has ended by then.
            stack.push_async_callback(connection.invalidate)
            # What the host's own set-up of connections began is ended: in a transaction, LISTEN
            # would wait for it.
            await connection.run_sync(lambda sync: sync.connection.rollback())
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            driver = (await connection.get_raw_connection()).driver_connection
            own = TRANSACTIONS.on(engine.dialect.name).channel_of(engine.dialect.driver)(driver)
            stack.push_async_callback(_hang_up, own)
            await connection.run_sync(Connection.detach)
            await own.listen(
                channel_named(name or await own.schema() or ""), heard=heard, lost=lost
            )
        yield own


async def _hang_up(own: ChannelConnection) -> None:
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await own.close()
    except Exception:  # noqa: BLE001 - whatever is wrong with the connection, it ends here
        own.terminate()


def channel_named(name: str) -> str:
    channel = CHANNEL_PREFIX + name
    if len(channel.encode()) <= CHANNEL_BYTES_MAX:
        return channel
    return CHANNEL_PREFIX + hashlib.sha256(name.encode()).hexdigest()[:32]


def is_payload(text: str) -> bool:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= PAYLOAD_BYTES_MAX and "\x00" not in text


def check_name(name: object) -> None:
    if not (isinstance(name, str) and is_payload(name)):
        raise ConfigurationError(
            f"notify is True, False, or a name of up to {PAYLOAD_BYTES_MAX} bytes under which the"
            f" replicas find each other, such as 'billing'; not {name!r:.100}"
        )


def notifying_engine(session_factory: SessionFactory, tables: Iterable[LeasedTable]) -> AsyncEngine:
    """Return the engine of all `tables`, or else of the sessions; `ConfigurationError` if there is
    none such, or it cannot listen.
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
    # Refuses one that cannot listen.
    TRANSACTIONS.on(engine.dialect.name).channel_of(engine.dialect.driver)
    return AsyncEngine(engine)
