"""Tools for testing pipelines: the host's and our own.

The one idea: a test moves the time, the database's and the event loop's, and never waits for it.

`stepping` takes a pipeline one step at a time, `contract` has the tests that every pipeline should pass. `virtual_time` is
the event loop, `inline_sqlite` the database that runs in it, `database_clock` the database's time, `databases` the real
databases of a test. Only who imports them loads what they need: `plugin` has all of it as fixtures of pytest, `strategies` draws
outcomes, settings and steps for Hypothesis. Not here: anything that production code needs.
"""

from __future__ import annotations

from rowlock.testing.contract import PipelineContract
from rowlock.testing.database_clock import DatabaseClock
from rowlock.testing.databases import PostgresqlServer, TemporaryDatabase, inline_sqlite_database
from rowlock.testing.inline_sqlite import inline_sqlite_engine
from rowlock.testing.stepping import Steps, run_until_settled, stepping
from rowlock.testing.steps import Step, StepKind, take_step
from rowlock.testing.virtual_time import VirtualTimeLoop, run_virtual, virtual_time, virtual_time_now

__all__ = [
    "DatabaseClock",
    "PipelineContract",
    "PostgresqlServer",
    "Step",
    "StepKind",
    "Steps",
    "TemporaryDatabase",
    "VirtualTimeLoop",
    "inline_sqlite_database",
    "inline_sqlite_engine",
    "run_until_settled",
    "run_virtual",
    "stepping",
    "take_step",
    "virtual_time",
    "virtual_time_now",
]
