"""What a stretch of work costs: wall time, processor time of this process and of the server,
statements, transactions, connections.

The server's processor time is read from the processes of a PostgreSQL on this machine; elsewhere it
is not a number.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Self

import psutil
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine


class Meter:
    """Counts from ``start`` to ``stop``.

    Attributes:
        seconds: wall time.
        client_s: processor time of this process, all threads.
        server_s: processor time of the PostgreSQL server.
        statements: sent through the engine; many parameter sets of one statement count once.
        transactions: begun through the engine.
        connections: opened by the engine since the meter was made.
    """

    def __init__(self, engine: AsyncEngine, server: psutil.Process | None = None) -> None:
        self.statements = self.transactions = self.connections = 0
        self.seconds = self.client_s = self.server_s = 0.0
        self._server = server
        event.listen(engine.sync_engine, "before_cursor_execute", self._count_statement)
        event.listen(engine.sync_engine, "begin", self._count_transaction)
        event.listen(engine.sync_engine, "connect", self._count_connection)

    @classmethod
    async def on(cls, engine: AsyncEngine) -> Self:
        return cls(engine, await _server_of(engine))

    def start(self) -> None:
        self.statements = self.transactions = 0
        self._server_began = _total_s(self._server)
        self._client_began = time.process_time()
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.client_s = time.process_time() - self._client_began
        self.server_s = _total_s(self._server) - self._server_began

    def cpu_per(self, count: int) -> dict[str, float]:
        """Return processor time per item, in microseconds; without the server's, if that is not
        known.
        """
        server = {} if math.isnan(self.server_s) else {"server µs/row": self.server_s / count * 1e6}
        return {"client µs/row": self.client_s / count * 1e6} | server

    def _count_statement(self, *_: Any) -> None:
        self.statements += 1

    def _count_transaction(self, *_: Any) -> None:
        self.transactions += 1

    def _count_connection(self, *_: Any) -> None:
        self.connections += 1


async def _server_of(engine: AsyncEngine) -> psutil.Process | None:
    if engine.dialect.name != "postgresql":
        return None
    async with engine.connect() as connection:
        folder = (await connection.execute(text("SHOW data_directory"))).scalar_one()
    try:
        return psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
    except (OSError, psutil.Error):
        return None


def _total_s(server: psutil.Process | None) -> float:
    if server is None:
        return math.nan
    own = server.cpu_times()
    total: float = own.user + own.system + own.children_user + own.children_system
    for child in server.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
