"""A server that forks: what each of its processes prints is looked at by ``test_forked.py``.

    python -m tests.insight.forking URL

First all is made once, and then forked, as gunicorn does with ``--preload``; then a process forks
while its Observer runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from httpx import ASGITransport, AsyncClient
from sqlalchemy import ColumnElement, Pool, event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager, events
from rowlock.dashboard import Dashboard, anybody_may_look
from rowlock.insight import Observer, replica_mark

from ..host import Run, RunPipeline, heard_events
from ..pipelines.scenes import until
from .test_history import TABLES

CHILDREN = (1, 2)
IN_USE: set[int] = set()
"""Connections that somebody has out of a pool, which may be in a transaction."""


class OwnPipeline(RunPipeline):
    def __init__(self, only: int | None = None) -> None:
        self.only = only
        super().__init__()

    def ready(self) -> ColumnElement[bool]:
        return (Run.status == "queued") & (Run.id == self.only)


def main() -> None:
    [url] = sys.argv[1:]
    event.listen(Pool, "checkout", lambda _connection, record, _proxy: IN_USE.add(id(record)))
    event.listen(Pool, "checkin", lambda _connection, record: IN_USE.discard(id(record)))
    sessions = async_sessionmaker(create_async_engine(url), expire_on_commit=False)
    preloaded(sessions)
    asyncio.run(running(url))


def preloaded(sessions: Any) -> None:
    """Make everything, fork twice, and have each child do its work."""
    pipeline = OwnPipeline()
    manager = PipelineManager(sessions, [pipeline])
    observer = Observer(manager, tables=TABLES)
    app = Dashboard(observer, authorize=anybody_may_look)
    for number in CHILDREN:
        pipeline.only = number
        waited(lambda number=number: preloaded_child(sessions, manager, observer, app, number))


async def preloaded_child(
    sessions: Any, manager: PipelineManager, observer: Observer, app: Any, number: int
) -> None:
    """Have a run worked on, and look at the dashboard."""
    async with observer, manager:
        await ended(sessions, number)
        await observer.beat()
        async with AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
            page = await client.get("/replicas")
    say(name=observer.name, is_shown=replica_mark() in page.text, status=page.status_code)


async def running(url: str) -> None:
    sessions = async_sessionmaker(create_async_engine(url), expire_on_commit=False)
    pipeline = OwnPipeline(3)
    manager = PipelineManager(sessions, [pipeline])
    async with Observer(manager, tables=TABLES) as observer, manager:
        # Its entry waits at the time of the fork, or was written just before.
        await ended(sessions, 3)
        # A child that inherits a connection in a transaction holds SQLite's lock of the file for
        # ever, as far as its own copy of SQLite knows.
        await until(lambda: not IN_USE)
        child = forked(lambda: running_child(observer, url))
        # The loop goes on: a transaction that is open now would keep SQLite's file locked.
        await asyncio.to_thread(wait_for, child)


async def running_child(inherited: Observer, url: str) -> None:
    """Have two runs worked on, the second one under an Observer of this process."""
    sessions = async_sessionmaker(create_async_engine(url), expire_on_commit=False)
    assert inherited.history is not None
    async with PipelineManager(sessions, [OwnPipeline(4)]):
        await ended(sessions, 4)
    kept = sum(len(one.queue) for one in inherited.history._writers.values())
    manager = PipelineManager(sessions, [OwnPipeline(5)])
    async with Observer(manager, tables=TABLES), manager:
        await ended(sessions, 5)
    say(kept=kept)


async def ended(sessions: Any, number: int) -> None:
    """Write a run and wait until it was ended."""
    with heard_events() as heard:
        async with sessions.begin() as session:
            session.add(Run(id=number))
        await heard.wait_for(events.ItemApplied)


def waited(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` in a child, and wait for its end."""
    wait_for(forked(work))


def forked(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` in a child, and return its number."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            asyncio.run(work())
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def wait_for(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def say(**told: Any) -> None:
    print(json.dumps({"mark": replica_mark(), "pid": os.getpid(), **told}), flush=True)


if __name__ == "__main__":
    main()
