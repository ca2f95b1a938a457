"""Tools for testing a host's pipelines.

The one idea: a test moves the time, the database's and the event loop's, and never waits for it.

`stepping` takes a pipeline one step at a time, `contract` has the tests that every pipeline should
pass. `crash_everywhere` kills its `process` at every await, `failpoints` are at every statement.
`virtual_time` is the event loop, `inline_sqlite` the database that runs in it, `databases` the real
databases of a test, with a clock that it moves. Only who imports them loads what they need:
`plugin` has all of it as fixtures of pytest, `strategies` draws outcomes and steps for Hypothesis.
Not here: anything that production code needs.
"""

from __future__ import annotations

from rowlock.testing.contract import PipelineContract
from rowlock.testing.crashes import CrashContract, CrashError, crash_everywhere
from rowlock.testing.database_clock import DatabaseClock
from rowlock.testing.databases import PostgresqlServer, TemporaryDatabase, inline_sqlite_database
from rowlock.testing.failpoints import Failpoints
from rowlock.testing.inline_sqlite import inline_sqlite_engine
from rowlock.testing.stepping import Step, StepKind, Steps, run_until_settled, stepping, take_step
from rowlock.testing.virtual_time import (
    VirtualTimeLoop,
    run_virtual,
    virtual_time,
    virtual_time_now,
)

__all__ = [
    "CrashContract",
    "CrashError",
    "DatabaseClock",
    "Failpoints",
    "PipelineContract",
    "PostgresqlServer",
    "Step",
    "StepKind",
    "Steps",
    "TemporaryDatabase",
    "VirtualTimeLoop",
    "crash_everywhere",
    "inline_sqlite_database",
    "inline_sqlite_engine",
    "run_until_settled",
    "run_virtual",
    "stepping",
    "take_step",
    "virtual_time",
    "virtual_time_now",
]
