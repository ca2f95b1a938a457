"""The reference of a flow, computed in another process: what depends on the order of a set, or on
the hash of a text, comes out otherwise there.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
from asyncio.subprocess import PIPE
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock.errors import PipelineError
from rowlock.streams.flow import StreamFlow
from rowlock.testing.streams.records import FlowRecord
from rowlock.testing.streams.running import reference

__all__ = ["ClassPlace", "place_of", "reference_elsewhere"]

SEEDS = ("1", "2")
"""Of hashes; the one that is not this process's is used."""


class ClassPlace(NamedTuple):
    """Where another process finds a class."""

    module: str
    file: str
    name: str


def place_of(cls: type[Any]) -> ClassPlace | None:
    """Return where a class is found; None if it is made by a function."""
    if "<locals>" in cls.__qualname__:
        return None
    return ClassPlace(cls.__module__, inspect.getfile(cls), cls.__qualname__)


async def reference_elsewhere(place: ClassPlace, url: URL) -> FlowRecord:
    """Return the reference of the `flow` of a class, computed in another process."""
    seed = next(one for one in SEEDS if one != os.environ.get("PYTHONHASHSEED"))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", f"from {__name__} import compute; compute()"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    task = place, url.render_as_string(hide_password=False)
    answer, errors = await child.communicate(pickle.dumps(task))
    if child.returncode:
        raise PipelineError(f"another process cannot test {place.name}: {errors.decode()}")
    record: FlowRecord = pickle.loads(answer)
    return record


def compute() -> None:
    """The program of that process."""
    place, url = pickle.load(sys.stdin.buffer)
    answer, sys.stdout = sys.stdout, sys.stderr
    found: Any = _module(place)
    for name in place.name.split("."):
        found = getattr(found, name)
    pickle.dump(asyncio.run(_read(found().flow, url)), answer.buffer)


def _module(place: ClassPlace) -> ModuleType:
    try:
        return import_module(place.module)
    except ModuleNotFoundError:
        # A runner of tests imports modules of folders that are on no path.
        sys.path.append(str(Path(place.file).parents[place.module.count(".")]))
        return import_module(place.module)


async def _read(flow: StreamFlow[Any], url: str) -> FlowRecord:
    engine = create_async_engine(url)
    try:
        return await reference(async_sessionmaker(engine), flow)
    finally:
        await engine.dispose()
