"""``LISTEN`` and ``NOTIFY`` over psycopg's async connection.

The one idea: between statements the event loop watches the socket, and a notification is read when
it arrives. psycopg's own `notifies()` keeps the connection's lock for as long as it listens, and
nothing could be sent meanwhile.

The trap: while psycopg waits for an answer it watches the same socket, and then stops watching it.
So every statement is sent by `_ask`, which watches again behind it. A statement that is cancelled
asks the server to cancel it, and waits for the answer of a server that may be silent; so one that
is out of time is not cancelled before its connection is cut.

Source: psycopg 3.3 ``_connection_base.py``, ``connection_async.py``, ``waiting.py``; libpq,
"Asynchronous Notification".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.containment import contained_task
from rowlock.database.channel_dialect import ChannelConnection


class PsycopgChannel(ChannelConnection):
    """Reads notifications whenever the socket has something."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._own_pid: int = driver.info.backend_pid
        self._socket: int = driver.pgconn.socket
        self._heard: Callable[[str], None] | None = None
        self._lost: Callable[[], None] | None = None
        self._asking = asyncio.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return bool(self._driver.closed)

    async def schema(self, *, timeout_s: float) -> str | None:
        """Ask the server."""
        schema: str | None = await self._ask("SELECT current_schema()", (), timeout_s)
        return schema

    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        """Listen, and watch the socket."""
        # An extra, which this connection is of.
        from psycopg.sql import SQL, Identifier  # noqa: PLC0415

        self._heard, self._lost = heard, lost
        # What arrives together with an answer is given to a handler.
        self._driver.add_notify_handler(lambda notify: self._hear(notify.pid, notify.payload))
        await self._driver.execute(SQL("LISTEN {}").format(Identifier(channel)))
        self._watch()

    async def notify(self, channel: str, payloads: Sequence[str], *, timeout_s: float) -> None:
        """Send all by one statement."""
        statement = "SELECT count(pg_notify(%s, payload)) FROM unnest(%s::text[]) AS payload"
        await self._ask(statement, (channel, list(payloads)), timeout_s)

    async def is_listening(self, channel: str, *, timeout_s: float) -> bool:
        """Ask the server."""
        listens: bool = await self._ask(
            "SELECT %s IN (SELECT pg_listening_channels())", (channel,), timeout_s
        )
        return listens

    async def close(self) -> None:
        """End politely."""
        self._loop.remove_reader(self._socket)
        self._lost = None
        await self._driver.close()

    def terminate(self) -> None:
        """Close the socket."""
        self._end()

    async def _ask(self, statement: str, parameters: tuple[Any, ...], timeout_s: float) -> Any:
        async with self._asking:
            asking = contained_task(self._value(statement, parameters), name="rowlock: ask")
            try:
                _, pending = await asyncio.wait({asking}, timeout=timeout_s)
            except asyncio.CancelledError:
                self._end()
                asking.cancel()
                raise
            if pending:
                self._end()
                asking.cancel()
                raise TimeoutError(f"the server did not answer within {timeout_s:g} s")
            self._watch()
            return asking.result()

    async def _value(self, statement: str, parameters: tuple[Any, ...]) -> Any:
        row = await (await self._driver.execute(statement, parameters)).fetchone()
        return row[0]

    def _watch(self) -> None:
        if self._heard is not None and not self._driver.closed:
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        server = self._driver.pgconn
        try:
            server.consume_input()
            while (notify := server.notifies()) is not None:
                self._hear(notify.be_pid, notify.extra.decode())
        except Exception:  # noqa: BLE001 - whatever is wrong with the connection, it ends here
            self._end()

    def _hear(self, pid: int, payload: str) -> None:
        if pid != self._own_pid and self._heard is not None:
            self._heard(payload)

    def _end(self) -> None:
        self._loop.remove_reader(self._socket)
        self._driver.pgconn.finish()
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()
