"""``LISTEN`` and ``NOTIFY``, by the calls of each driver.

What a connection says comes back to it, and is known by the server process that said it.

Over psycopg the event loop watches the socket between statements: psycopg's own `notifies()` keeps
the connection's lock for as long as it listens, and nothing could be sent meanwhile. The trap:
while psycopg waits for an answer it watches the same socket, and then stops watching it. So every
statement is sent by `_ask`, which watches again behind it. A statement that is cancelled asks the
server to cancel it, and waits for the answer of a server that may be silent; so one that is out of
time is not cancelled before its connection is cut.

Source: PostgreSQL, "NOTIFY", "LISTEN"; asyncpg, `Connection.add_listener`; psycopg 3.3
``_connection_base.py``, ``connection_async.py``, ``waiting.py``; libpq, "Asynchronous
Notification".
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.dialects.contract import ChannelConnection


class _PostgresqlChannel(ChannelConnection):
    @abstractmethod
    async def _ask(self, statement: str, *parameters: Any) -> Any:
        """Return the first value of the answer, within `answer_s_max`."""

    async def schema(self) -> str | None:
        schema: str | None = await self._ask("SELECT current_schema()")
        return schema

    async def is_listening(self) -> bool:
        return self.name in await self._ask("SELECT ARRAY(SELECT pg_listening_channels())")


class PsycopgChannel(_PostgresqlChannel):
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
        return bool(self._driver.closed)

    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        from psycopg.sql import SQL, Identifier  # noqa: PLC0415

        self.name, self._heard, self._lost = channel, heard, lost
        # What arrives together with an answer is given to a handler.
        self._driver.add_notify_handler(lambda notify: self._hear(notify.pid, notify.payload))
        await self._driver.execute(SQL("LISTEN {}").format(Identifier(channel)))
        self._watch()

    async def notify(self, payloads: Sequence[str]) -> None:
        statement = "SELECT count(pg_notify(%s, payload)) FROM unnest(%s::text[]) AS payload"
        await self._ask(statement, self.name, list(payloads))

    async def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._lost = None
        await self._driver.close()

    def terminate(self) -> None:
        self._end()

    async def _ask(self, statement: str, *parameters: Any) -> Any:
        async with self._asking:
            asking = asyncio.create_task(self._value(statement, parameters), name="rowlock: ask")
            try:
                _, pending = await asyncio.wait({asking}, timeout=self.answer_s_max)
            except asyncio.CancelledError:
                self._end()
                asking.cancel()
                raise
            if pending:
                self._end()
                asking.cancel()
                raise TimeoutError(f"the server did not answer within {self.answer_s_max:g} s")
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


class AsyncpgChannel(_PostgresqlChannel):
    """Over asyncpg's `Connection`, which calls listeners by itself."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    @property
    def is_lost(self) -> bool:
        closed: bool = self._driver.is_closed()
        return closed

    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        self.name, own_pid = channel, self._driver.get_server_pid()

        def hear(*notification: Any) -> None:
            _driver, pid, _channel, payload = notification
            if pid != own_pid:
                heard(payload)

        self._driver.add_termination_listener(lambda _driver: lost())
        await self._driver.add_listener(channel, hear)

    async def notify(self, payloads: Sequence[str]) -> None:
        statement = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
        await self._driver.execute(statement, self.name, payloads, timeout=self.answer_s_max)

    async def close(self) -> None:
        await self._driver.close()

    def terminate(self) -> None:
        self._driver.terminate()

    async def _ask(self, statement: str, *parameters: Any) -> Any:
        return await self._driver.fetchval(statement, *parameters, timeout=self.answer_s_max)


CHANNELS: dict[str, Callable[[Any], ChannelConnection]] = {
    "asyncpg": AsyncpgChannel,
    "psycopg": PsycopgChannel,
}
