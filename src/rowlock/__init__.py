"""rowlock: background pipelines over your own SQLAlchemy rows.

A service's rows are leased by columns of their own table, worked on outside transactions, and
written under a guard; on SQLite and PostgreSQL alike, by any number of replicas.
"""

from __future__ import annotations

from rowlock import events
from rowlock.errors import (
    AdmissionRejected,
    ConfigurationError,
    Draining,
    GraphClosed,
    GraphDeadlockError,
    GraphError,
    GraphInterrupted,
    GraphTimeLimit,
    HostCodeError,
    InternalError,
    LeaseLost,
    LockCycleError,
    LockWaitTimeout,
    ModelError,
    NoWorkersAvailable,
    OutcomeError,
    PipelineError,
    ProcessCancelledError,
    Refusal,
    RelatedLockUnavailable,
    RowlockError,
    SettingsError,
    TransactionTimeout,
    UnsupportedDialectError,
    WorkerBusy,
    WorkerGone,
)
from rowlock.events import Event, subscribe
from rowlock.hints import NotificationStatistics, PipelineHinter, hint_after_commit, pipeline_hinter
from rowlock.leases.item import PipelineItem
from rowlock.locks.advisory import (
    advisory_lock_ctx,
    lock_rows,
    lock_unique_names,
    string_to_lock_id,
    try_advisory_lock_ctx,
)
from rowlock.locks.locker import ResourceLocker, get_locker
from rowlock.pipelines.fetcher import Fetcher
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.lock_graph import Related
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.outcomes import Apply, Delete, Outcome, Park, Reset, Retry
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.schedules import Periodic
from rowlock.pipelines.settings import PipelineSettings, SettingsKeywords
from rowlock.pipelines.statistics import (
    Buckets,
    ItemView,
    ManagerHealth,
    PipelineHealth,
    PipelineStatistics,
)
from rowlock.pipelines.worker import Worker
from rowlock.rows.columns import LockColumns, ScheduleColumns
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.indexes import due_index, parked_index
from rowlock.rows.updates import NOW_PLACEHOLDER, resolve_now_placeholders
from rowlock.schedules import Cron, Schedule
from rowlock.services.due import make_due, park, unpark
from rowlock.services.hold import HeldByService, hold_rows
from rowlock.services.request import request_update
from rowlock.stream_errors import (
    CursorMoved,
    FlowChangedError,
    NotProcessedYet,
    PositionsWentBackError,
    ProducerConflictError,
    ReplayMismatchError,
    RowsChanged,
    ShardsMissingError,
    ShardStateError,
    StepExpired,
    StillNeeded,
    StoreClosedError,
    VersionNotFoundError,
    WrongShardError,
)

__all__ = [
    "NOW_PLACEHOLDER",
    "AdmissionRejected",
    "Apply",
    "Buckets",
    "ConfigurationError",
    "Cron",
    "CursorMoved",
    "Delete",
    "Draining",
    "Event",
    "Fetcher",
    "FlowChangedError",
    "GraphClosed",
    "GraphDeadlockError",
    "GraphError",
    "GraphInterrupted",
    "GraphTimeLimit",
    "Heartbeater",
    "HeldByService",
    "HostCodeError",
    "InternalError",
    "ItemView",
    "LeaseLost",
    "LockColumns",
    "LockCycleError",
    "LockWaitTimeout",
    "ManagerHealth",
    "ModelError",
    "NoWorkersAvailable",
    "NotProcessedYet",
    "NotificationStatistics",
    "Outcome",
    "OutcomeError",
    "Park",
    "Periodic",
    "Pipeline",
    "PipelineError",
    "PipelineHealth",
    "PipelineHinter",
    "PipelineItem",
    "PipelineManager",
    "PipelineSettings",
    "PipelineStatistics",
    "PositionsWentBackError",
    "ProcessCancelledError",
    "ProducerConflictError",
    "Refusal",
    "Related",
    "RelatedLockUnavailable",
    "ReplayMismatchError",
    "Reset",
    "ResourceLocker",
    "Retry",
    "RowlockError",
    "RowsChanged",
    "Schedule",
    "ScheduleColumns",
    "SettingsError",
    "SettingsKeywords",
    "ShardStateError",
    "ShardsMissingError",
    "StepExpired",
    "StillNeeded",
    "StoreClosedError",
    "TransactionTimeout",
    "UnsupportedDialectError",
    "UtcDateTime",
    "VersionNotFoundError",
    "Worker",
    "WorkerBusy",
    "WorkerGone",
    "WrongShardError",
    "advisory_lock_ctx",
    "database_now",
    "due_index",
    "events",
    "get_locker",
    "hint_after_commit",
    "hold_rows",
    "lock_rows",
    "lock_unique_names",
    "make_due",
    "park",
    "parked_index",
    "pipeline_hinter",
    "request_update",
    "resolve_now_placeholders",
    "string_to_lock_id",
    "subscribe",
    "try_advisory_lock_ctx",
    "unpark",
]
