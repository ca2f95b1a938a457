"""An app in a folder of the test's own, and the command line in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

import pytest

from rowlock.testing import TemporaryDatabase

from .forked import command

APP: Final = """\
import sys
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from rowlock import Apply, PipelineManager
from rowlock.insight import Insight, insight_tables
from shop import FleetPipeline, VolumePipeline, Base

engine = create_async_engine({url!r})
sessions = async_sessionmaker(engine)
pipelines = [VolumePipeline(), FleetPipeline()]
pair = (sessions, pipelines)

class Loud(PipelineManager):
    def start(self):
        print("started", flush=True, file=sys.stderr)
        super().start()

manager = Loud(sessions, pipelines)
insight = Insight(sessions, pipelines)
tables = insight_tables(Base.metadata, replicas=False)
pausable = PipelineManager(sessions, pipelines, gates=[tables.pause_gate])
remembering = Insight(
    sessions, pipelines, tables=insight_tables(Base.metadata, replicas=False, history=True)
)

class PlannedPipeline(VolumePipeline):
    rehearsable = True
    async def process(self, item):
        if item.id == 18:
            raise ValueError("no disk")
        return Apply({{"status": "active"}})

planned = Insight(sessions, [PlannedPipeline(), FleetPipeline()])
number = 7
hasty = async_sessionmaker(create_async_engine({url!r}, connect_args={{"timeout": 0.2}})), pipelines
unpooled = async_sessionmaker(create_async_engine({url!r}, poolclass=NullPool)), pipelines

def made(): return pair
async def awaited(): return manager
def needs(argument): return pair
def twice(): return made
def returns_nothing(): made()
def fails_within(): return len(7)

class Context:
    async def __aenter__(self):
        print("entered", flush=True, file=sys.stderr)
        return insight
    async def __aexit__(self, *error):
        print("left", flush=True, file=sys.stderr)

def entered(): return Context()
"""

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def rowlock(tmp_path: Path, sqlite_database: TemporaryDatabase) -> Command:
    """Run the command line in a folder that has an app, on the test's database."""
    return command_in(tmp_path, sqlite_database)


@pytest.fixture
def rowlock_on_both(tmp_path: Path, database: TemporaryDatabase) -> Command:
    return command_in(tmp_path, database)


def command_in(tmp_path: Path, database: TemporaryDatabase) -> Command:
    """Write the app, and return what runs the command line beside it."""
    url = database.url.render_as_string(hide_password=False)
    (tmp_path / "app.py").write_text(APP.format(url=url), encoding="utf-8")

    def run(*words: str, folder: Path = tmp_path, **environment: str) -> CompletedProcess[str]:
        return command(words, folder, os.environ | environment)

    return run
