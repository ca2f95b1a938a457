"""Tools for testing pipelines: the host's and our own.

The one idea: a test moves the time, the database's and the event loop's, and never waits for it.

`virtual_time` is the event loop, `inline_sqlite` the database that runs in it, `database_clock` the database's time,
`databases` the real databases of a test. Not here: anything that production code needs.
"""

from __future__ import annotations

from rowlock.testing.database_clock import DatabaseClock
from rowlock.testing.databases import PostgresqlServer, TemporaryDatabase
from rowlock.testing.inline_sqlite import inline_sqlite_engine
from rowlock.testing.virtual_time import VirtualTimeLoop, run_virtual, virtual_time

__all__ = [
    "DatabaseClock",
    "PostgresqlServer",
    "TemporaryDatabase",
    "VirtualTimeLoop",
    "inline_sqlite_engine",
    "run_virtual",
    "virtual_time",
]
