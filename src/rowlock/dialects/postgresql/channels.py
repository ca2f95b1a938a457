"""``LISTEN`` and ``NOTIFY``, by the calls of each driver.

What a connection says comes back to it, and is known by the server process that said it.

Source: PostgreSQL, "NOTIFY", "LISTEN"; asyncpg, `Connection.add_listener`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rowlock.database.channel_dialect import ChannelConnection, ChannelDialect
from rowlock.dialects.postgresql.psycopg_channel import PsycopgChannel
from rowlock.errors import ConfigurationError


class PostgresqlChannels(ChannelDialect):
    """Chooses by the driver."""

    def check_driver(self, driver: str) -> None:
        """Refuse drivers that are not in the list."""
        if driver not in _BY_DRIVER:
            raise ConfigurationError(
                f"notify needs the driver {' or '.join(_BY_DRIVER)}, not {driver}; use"
                f" postgresql+{next(iter(_BY_DRIVER))}://..."
            )

    def channel_over(self, driver_connection: Any, driver: str) -> ChannelConnection:
        """Return that of the driver."""
        return _BY_DRIVER[driver](driver_connection)


class AsyncpgChannel(ChannelConnection):
    """Over asyncpg's `Connection`, which calls listeners by itself."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        closed: bool = self._driver.is_closed()
        return closed

    async def schema(self, *, timeout_s: float) -> str | None:
        """Ask the server."""
        schema: str | None = await self._driver.fetchval(
            "SELECT current_schema()", timeout=timeout_s
        )
        return schema

    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        """Add listeners."""
        own_pid = self._driver.get_server_pid()

        def hear(*notification: Any) -> None:
            _driver, pid, _channel, payload = notification
            if pid != own_pid:
                heard(payload)

        self._driver.add_termination_listener(lambda _driver: lost())
        await self._driver.add_listener(channel, hear)

    async def notify(self, channel: str, payloads: Sequence[str], *, timeout_s: float) -> None:
        """Send all by one statement."""
        statement = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
        await self._driver.execute(statement, channel, list(payloads), timeout=timeout_s)

    async def is_listening(self, channel: str, *, timeout_s: float) -> bool:
        """Ask the server."""
        statement = "SELECT $1 IN (SELECT pg_listening_channels())"
        listens: bool = await self._driver.fetchval(statement, channel, timeout=timeout_s)
        return listens

    async def close(self) -> None:
        """End politely."""
        await self._driver.close()

    def terminate(self) -> None:
        """Cut it."""
        self._driver.terminate()


_BY_DRIVER: dict[str, Callable[[Any], ChannelConnection]] = {
    "asyncpg": AsyncpgChannel,
    "psycopg": PsycopgChannel,
}
