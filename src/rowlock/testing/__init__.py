"""Tools for testing pipelines: the host's and our own.

The one idea: a test moves the time, the database's and the event loop's, and never waits for it.

`stepping` takes a pipeline one step at a time, `contract` has the tests that every pipeline should
pass. `crash_everywhere` kills its `process` at every await, `failpoints` are at every statement,
`simulation` plays whole replicas with faults that are drawn from a number. `history` lets the
database write down what becomes of leases, and `checker` judges it. `virtual_time` is the event
loop, `inline_sqlite` the database that runs in it, `databases` the real databases of a test, with a
clock that it moves. Only who imports them loads what they need: `plugin` has all of it as fixtures
of pytest, `strategies` draws outcomes, settings and steps for Hypothesis. Not here: anything that
production code needs.
"""

from __future__ import annotations

from rowlock.testing.contract import PipelineContract
from rowlock.testing.crashes.crash_everywhere import CrashContract, CrashError, crash_everywhere
from rowlock.testing.crashes.failpoints import Failpoints
from rowlock.testing.databases.clock import DatabaseClock
from rowlock.testing.databases.inline_sqlite import inline_sqlite_engine
from rowlock.testing.databases.postgresql_server import PostgresqlServer
from rowlock.testing.databases.temporary import TemporaryDatabase, inline_sqlite_database
from rowlock.testing.judge.checker import Violation, check
from rowlock.testing.judge.history import (
    Change,
    RowState,
    historian_statements,
    install_historian,
    key_text,
    read_history,
)
from rowlock.testing.judge.timeline import timeline
from rowlock.testing.simulation import (
    PromiseBrokenError,
    Scenario,
    Simulation,
    SimulationReport,
    simulate,
)
from rowlock.testing.stepping import Steps, run_until_settled, stepping
from rowlock.testing.steps import Step, StepKind, take_step
from rowlock.testing.virtual_time import (
    VirtualTimeLoop,
    run_virtual,
    virtual_time,
    virtual_time_now,
)

__all__ = [
    "Change",
    "CrashContract",
    "CrashError",
    "DatabaseClock",
    "Failpoints",
    "PipelineContract",
    "PostgresqlServer",
    "PromiseBrokenError",
    "RowState",
    "Scenario",
    "Simulation",
    "SimulationReport",
    "Step",
    "StepKind",
    "Steps",
    "TemporaryDatabase",
    "Violation",
    "VirtualTimeLoop",
    "check",
    "crash_everywhere",
    "historian_statements",
    "inline_sqlite_database",
    "inline_sqlite_engine",
    "install_historian",
    "key_text",
    "read_history",
    "run_until_settled",
    "run_virtual",
    "simulate",
    "stepping",
    "take_step",
    "timeline",
    "virtual_time",
    "virtual_time_now",
]
