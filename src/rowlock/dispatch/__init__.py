"""dispatch/: bounded concurrency over the same rows and leases: admission, capacity, retry to a
deadline, workers elsewhere.

A `DispatchPipeline` takes submissions up to a ceiling, offers each row to the workers of an
`Engine`, keeps those that find no worker for later, and writes what comes of them. There is no
second queue: what waits are rows, and what runs is leased.
"""

from __future__ import annotations

from rowlock.dispatch.columns import COMPLETED, FAILED, PENDING, RUNNING, DispatchColumns
from rowlock.dispatch.engine import (
    AttemptEvent,
    Backpressure,
    BackpressureContext,
    Balancer,
    Completed,
    Engine,
    Failed,
    Heartbeat,
    LeastBusy,
    PriorityLoadBalancer,
    Progress,
    RoundRobin,
    StageDone,
    Task,
    TaskCountBackpressure,
    WorkerView,
)
from rowlock.dispatch.engines.local import LoopEngine, ThreadEngine
from rowlock.dispatch.engines.process import ProcessEngine
from rowlock.dispatch.migrations import dispatch_columns, dispatch_indexes
from rowlock.dispatch.pipeline import DispatchPipeline
from rowlock.dispatch.placement import Provision
from rowlock.errors import AdmissionRejected, Draining, NoWorkersAvailable, WorkerBusy, WorkerGone

__all__ = [
    "COMPLETED",
    "FAILED",
    "PENDING",
    "RUNNING",
    "AdmissionRejected",
    "AttemptEvent",
    "Backpressure",
    "BackpressureContext",
    "Balancer",
    "Completed",
    "DispatchColumns",
    "DispatchPipeline",
    "Draining",
    "Engine",
    "Failed",
    "Heartbeat",
    "LeastBusy",
    "LoopEngine",
    "NoWorkersAvailable",
    "PriorityLoadBalancer",
    "ProcessEngine",
    "Progress",
    "Provision",
    "RoundRobin",
    "StageDone",
    "Task",
    "TaskCountBackpressure",
    "ThreadEngine",
    "WorkerBusy",
    "WorkerGone",
    "WorkerView",
    "dispatch_columns",
    "dispatch_indexes",
]
