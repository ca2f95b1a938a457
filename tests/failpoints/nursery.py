"""Replicas that are processes of their own, made in a few milliseconds: ``python -m
tests.failpoints.nursery [MODULE]``.

The module has the `STORIES` that replicas play, and the `Base` of their tables.

The one idea: a warm process that has done it all once, and has no thread, event loop or connection
any more, may be forked safely. It reads one order a line, forks a replica that plays a story, and
tells when that has ended or stopped. Everything is one JSON object a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock.graph import default_runtime
from rowlock.testing import DatabaseClock, Failpoints
from rowlock.testing.database_clock import follow_on_sqlite
from rowlock.testing.databases import open_sqlite_database, without_durability
from rowlock.testing.failpoints import Boundary

from .stories import Scene, Story

REPLICA_S_MAX: Final = 300
"""How long a replica may live before it is taken for hung. **Unit** seconds."""


def die(boundary: Boundary) -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(boundary: Boundary) -> None:
    """Stop this process until it gets ``SIGCONT``."""
    os.kill(os.getpid(), signal.SIGSTOP)


ACTS: Final = {"die": die, "freeze": freeze}
CLOCK: Final = struct.Struct("d")


def clock_of(path: str) -> DatabaseClock:
    """Return a clock that shows what the test's clock wrote into a file."""

    def seconds() -> float:
        return float(CLOCK.unpack(Path(path).read_bytes())[0])

    return DatabaseClock(datetime.fromtimestamp(seconds(), UTC), source=seconds)


def act_before(statement: str, act: Callable[[Boundary], None]) -> Callable[[Boundary], None]:
    """Return what acts before each statement that begins so."""

    def act_there(boundary: Boundary) -> None:
        if boundary.side == "before" and boundary.statement.startswith(statement):
            act(boundary)

    return act_there


async def play(order: dict[str, Any], stories: Mapping[str, Story]) -> None:
    """Be a replica."""
    url = make_url(order["url"])
    engine = create_async_engine(url)
    if url.get_backend_name() == "sqlite":
        without_durability(engine)
        follow_on_sqlite(clock_of(order["clock"]), engine)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    at, act = order["at"], ACTS[order["act"]]
    with Failpoints(
        engine,
        at=at if isinstance(at, int) else None,
        act=act,
        note=act_before(at, act) if isinstance(at, str) else None,
        distinct=True,
        armed=False,
    ) as points:
        await stories[order["story"]].play(Scene(sessions, points, Path(order["clock"]).parent))
    await engine.dispose()


async def warm_up(module: Any) -> None:
    """Play every story once: what SQLAlchemy makes of classes and statements is then there for
    all replicas.
    """
    with tempfile.TemporaryDirectory(prefix="rowlock-nursery-") as folder:
        async with aclosing(open_sqlite_database(Path(folder) / "warm.db")) as database:
            await database.create_tables(module.Base.metadata)
            for story in module.STORIES.values():
                async with database.session_factory.begin() as session:
                    session.add_all(story.rows())
                with Failpoints(database.engine, armed=False) as points:
                    await story.play(Scene(database.session_factory, points, Path(folder)))


def be_a_replica(order: dict[str, Any], stories: Mapping[str, Story]) -> None:
    """Play, and end this process without any of its parent's clean-up."""
    signal.alarm(REPLICA_S_MAX)
    try:
        asyncio.run(play(order, stories))
    except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def tell(**fields: object) -> None:
    """Say what became of a replica."""
    print(json.dumps(fields), flush=True)


def watch(pid: int) -> None:
    """Wait for the end of a replica, and for a word of the test while it is stopped."""
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            tell(stopped=True)
            sys.stdin.readline()
            os.kill(pid, signal.SIGCONT)
            continue
        tell(stopped=False, code=os.waitstatus_to_exitcode(status))
        return


def main() -> None:
    """Make replicas until the orders end."""
    logging.disable(logging.CRITICAL)
    create_async_engine("postgresql+asyncpg://")  # imports the driver, and connects to nothing
    module = import_module(sys.argv[1] if sys.argv[1:] else f"{__package__}.stories")
    asyncio.run(warm_up(module))
    default_runtime().close()
    gc.collect()  # threads of a dispatch pipeline end with it
    while threading.active_count() > 1:  # threads of a graph that have not heard of it yet
        time.sleep(0.001)
    gc.freeze()  # or the first collection of each replica would copy all of these pages
    tell(ready=True)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            be_a_replica(json.loads(line), module.STORIES)
        watch(pid)


if __name__ == "__main__":
    main()
