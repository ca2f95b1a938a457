"""rowlock: background pipelines over your own SQLAlchemy rows.

A service's rows are leased by columns of their own table, worked on outside transactions, and written under a guard; on SQLite and
PostgreSQL alike, by any number of replicas.
"""

from __future__ import annotations

from rowlock import events
from rowlock.errors import (
    ConfigurationError,
    HostCodeError,
    InternalError,
    LeaseLost,
    LockWaitTimeout,
    ModelError,
    OutcomeError,
    PipelineError,
    ProcessCancelledError,
    Refusal,
    RelatedLockUnavailable,
    RowlockError,
    SettingsError,
    TransactionTimeout,
    UnsupportedDialectError,
)
from rowlock.events import Event, subscribe
from rowlock.leases.due import make_due, unpark
from rowlock.leases.item import PipelineItem
from rowlock.locks.locker import ResourceLocker, get_locker
from rowlock.pipelines.fetcher import Fetcher
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.hinter import PipelineHinter, hint_after_commit, pipeline_hinter
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, Retry
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.settings import PipelineSettings, SettingsKeywords
from rowlock.pipelines.statistics import ManagerHealth, PipelineHealth, PipelineStatistics
from rowlock.pipelines.worker import Worker
from rowlock.rows.columns import LockColumns, ScheduleColumns
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.updates import NOW_PLACEHOLDER, resolve_now_placeholders

__all__ = [
    "NOW_PLACEHOLDER",
    "Apply",
    "ConfigurationError",
    "Event",
    "Fetcher",
    "Heartbeater",
    "HostCodeError",
    "InternalError",
    "LeaseLost",
    "LockColumns",
    "LockWaitTimeout",
    "ManagerHealth",
    "ModelError",
    "Outcome",
    "OutcomeError",
    "Park",
    "Pipeline",
    "PipelineError",
    "PipelineHealth",
    "PipelineHinter",
    "PipelineItem",
    "PipelineManager",
    "PipelineSettings",
    "PipelineStatistics",
    "ProcessCancelledError",
    "Refusal",
    "RelatedLockUnavailable",
    "Reset",
    "ResourceLocker",
    "Retry",
    "RowlockError",
    "ScheduleColumns",
    "SettingsError",
    "SettingsKeywords",
    "TransactionTimeout",
    "UnsupportedDialectError",
    "UtcDateTime",
    "Worker",
    "database_now",
    "events",
    "get_locker",
    "hint_after_commit",
    "make_due",
    "pipeline_hinter",
    "resolve_now_placeholders",
    "subscribe",
    "unpark",
]
