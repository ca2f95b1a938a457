"""One extra in an environment that has nothing else: ``python extra_works.py EXTRA`` uses what it
is for, once, and prints its name. Run by ``nox -s extras``, which makes the environments.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, Cron, LockColumns, Outcome, Pipeline, PipelineItem, PipelineManager
from rowlock.__main__ import main


class Base(DeclarativeBase):
    """The mapped classes."""


class Volume(LockColumns, Base):
    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)


class VolumePipeline(Pipeline[Volume]):
    model = Volume

    def ready(self) -> ColumnElement[bool]:
        return Volume.id > 0

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        return Apply()


def manager(url: str = "sqlite+aiosqlite:///extra.db") -> PipelineManager:
    return PipelineManager(async_sessionmaker(create_async_engine(url)), [VolumePipeline()])


async def _cli() -> None:
    importlib.import_module("rowlock.cli.top")
    with redirect_stdout(io.StringIO()):
        assert main(["completion", "bash"]) == 0


async def _cron() -> None:
    then = Cron("0 4 * * *", "Europe/Berlin").next_after(datetime(2026, 11, 22, 1, tzinfo=UTC))
    assert then == datetime(2026, 11, 22, 3, tzinfo=UTC)


async def _dashboard() -> None:
    from rowlock.dashboard import Dashboard, anybody_may_look  # noqa: PLC0415 - of an extra

    importlib.import_module("rowlock.cli.windows")
    importlib.import_module("uvicorn")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"here")]}
    beside = {"query_string": b"", "root_path": "", "scheme": "http", "server": ("here", 80)}
    app = Dashboard(manager(), authorize=anybody_may_look)
    await app(scope | beside | {"http_version": "1.1", "client": None}, receive, send)
    assert sent[0]["status"] == 200, sent


async def _mcp() -> None:
    importlib.import_module("rowlock.assistants")


async def _opentelemetry() -> None:
    from rowlock.telemetry import otel, tracing  # noqa: PLC0415 - of an extra

    otel.instrument(manager())()
    tracing.Tracing()


async def _prometheus() -> None:
    from rowlock.telemetry import prometheus  # noqa: PLC0415 - of an extra

    assert b"rowlock_queued" in prometheus.exposition(manager())


async def _postgresql() -> None:
    assert manager("postgresql+asyncpg://alice@localhost/shop").pipelines


async def _psycopg() -> None:
    assert manager("postgresql+psycopg://alice@localhost/shop").pipelines


async def _wool() -> None:
    importlib.import_module("rowlock.dispatch.engines.wool")


async def _testing() -> None:
    for name in ("rowlock.testing", "rowlock.testing.plugin", "rowlock.testing.strategies"):
        importlib.import_module(name)


USES: dict[str, Callable[[], Awaitable[None]]] = {
    "cli": _cli,
    "cron": _cron,
    "dashboard": _dashboard,
    "mcp": _mcp,
    "opentelemetry": _opentelemetry,
    "postgresql": _postgresql,
    "prometheus": _prometheus,
    "psycopg": _psycopg,
    "testing": _testing,
    "wool": _wool,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(USES[sys.argv[1]]())
        print(f"{sys.argv[1]} works")
        os.chdir("/")
