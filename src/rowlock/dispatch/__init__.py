"""dispatch/: bounded concurrency over the same rows and leases: admission, capacity, retry to a
deadline, workers elsewhere.

A `DispatchPipeline` takes submissions up to a ceiling, offers each row to the workers of an
`Engine`, keeps those that find no worker for later, and writes what comes of them. There is no
second queue: what waits are rows, and what runs is leased.
"""

from __future__ import annotations

from rowlock.dispatch.backpressure import Backpressure, BackpressureContext, TaskCountBackpressure
from rowlock.dispatch.balancers import Balancer, LeastBusy, PriorityLoadBalancer, RoundRobin
from rowlock.dispatch.columns import DispatchColumns
from rowlock.dispatch.delivering.provisioner import Provision
from rowlock.dispatch.engine import Engine, WorkerView
from rowlock.dispatch.engines.loop import LoopEngine
from rowlock.dispatch.engines.process import ProcessEngine
from rowlock.dispatch.engines.thread import ThreadEngine
from rowlock.dispatch.migrations import dispatch_columns, dispatch_indexes
from rowlock.dispatch.pipeline import DispatchPipeline
from rowlock.dispatch.states import COMPLETED, FAILED, PENDING, RUNNING
from rowlock.dispatch.task import (
    AttemptEvent,
    Completed,
    Failed,
    Heartbeat,
    Progress,
    StageDone,
    Task,
)
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
