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
from rowlock.hints.hinter import PipelineHinter, hint_after_commit, pipeline_hinter
from rowlock.hints.notifier import NotificationStatistics
from rowlock.leases.item import PipelineItem
from rowlock.locks.advisory import advisory_lock_ctx, string_to_lock_id, try_advisory_lock_ctx
from rowlock.locks.locker import ResourceLocker, get_locker
from rowlock.locks.rows_until_commit import lock_rows
from rowlock.locks.unique_names import lock_unique_names
from rowlock.pipelines.fetching.fetcher import Fetcher
from rowlock.pipelines.host_code.row_schedules import Periodic
from rowlock.pipelines.lock_graph import Related
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.outcomes import Apply, Delete, Outcome, Park, Reset, Retry
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.processing.worker import Worker
from rowlock.pipelines.renewing.heartbeater import Heartbeater
from rowlock.pipelines.settings import PipelineSettings, SettingsKeywords
from rowlock.pipelines.statistics import (
    Buckets,
    ItemView,
    ManagerHealth,
    PipelineHealth,
    PipelineStatistics,
)
from rowlock.rows.columns import LockColumns, ScheduleColumns
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.indexes.due_index import due_index
from rowlock.rows.indexes.parked_index import parked_index
from rowlock.rows.updates import NOW_PLACEHOLDER, resolve_now_placeholders
from rowlock.schedules import Cron, Schedule
from rowlock.services.due import make_due, park, unpark
from rowlock.services.handlers import hold_rows, request_update
from rowlock.services.hold import HeldByService
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
    StepPassedError,
    StillInUse,
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
    "StepPassedError",
    "StillInUse",
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
