"""Work that a cancelled caller does not cut short: `finish` runs it to its end in a task of its
own, bounded in time.

The trap this closes: a task cancelled in the middle of a SQLite transaction leaves the file's write
lock held until the garbage collector finds the connection, and a storm of cancellations leaves
PostgreSQL running the statement. So a cancelled caller waits until the work has ended, and only
then is cancelled.

`log_in_thread` keeps the heartbeat thread from waiting: an event loop that has stalled may have
done so in a handler of the log, a pipe that nobody reads, say, whose lock the next one to log waits
for. So each of these rare lines has a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from rowlock.containment import contained_task
from rowlock.errors import PipelineError, TransactionTimeout
from rowlock.logs import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

CANCEL_WAIT_S_MAX = 3.0
"""How long a transaction that is out of time may take to be cancelled, in seconds."""

STALL_S_MAX = 1.0
"""A timeout that goes off later than this tells of an event loop that stood still; so long it
has to catch up then, in seconds.
"""

_overdue: set[asyncio.Task[Any]] = set()


class CancelPlan(NamedTuple):
    """How a transaction that is out of time is to be cancelled.

    Attributes:
        message: of the cancellation.
        ending: what ends it, to be waited for.
    """

    message: str | None = None
    ending: asyncio.Task[bool] | None = None


async def finish(
    work: Coroutine[Any, Any, T],
    *,
    purpose: str,
    timeout: timedelta | None = None,
    plan_cancel: Callable[[asyncio.Task[T]], CancelPlan] = lambda _task: CancelPlan(),
    writes: bool = True,
) -> T:
    """Run `work` to its end in a task of its own, even if the caller is cancelled meanwhile; then
    let the cancellation out.

    Args:
        work: what is to be done.
        purpose: a verb phrase for errors and logs.
        timeout: how long it may take; then it is cancelled.
        plan_cancel: called with its task before that.
        writes: whether something is lost if it fails, which a caller that is gone does not see.

    Raises:
        TransactionTimeout: `work` did not end within `timeout`.
        PipelineError: `work` let a cancellation escape that was not its caller's.
        HostCodeError: a listener, a type or another part of the host's raised what would have ended
            the event loop.
    """
    task = contained_task(work, name=f"rowlock: {purpose}")
    cancelled = await _wait_shielded(task, None if timeout is None else timeout.total_seconds())
    out_of_time = not task.done()
    if out_of_time:
        cancelled = await _cancel_overdue(task, plan_cancel(task)) or cancelled
    if cancelled is not None:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log = logger.warning if writes else logger.debug
            log(
                "The transaction of a cancelled caller failed: %s",
                purpose,
                extra={"purpose": purpose},
                exc_info=error,
            )
        raise cancelled
    if out_of_time and (not task.done() or task.cancelled()):
        raise TransactionTimeout(
            purpose=purpose, timeout_s=timeout.total_seconds() if timeout else 0.0
        )
    if task.cancelled():
        raise PipelineError(f"the transaction to {purpose} was cancelled from within")
    return task.result()


async def _wait_shielded(
    task: asyncio.Task[Any], timeout_s: float | None
) -> asyncio.CancelledError | None:
    loop = asyncio.get_running_loop()
    ends_at = None if timeout_s is None else loop.time() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        left_s = None if ends_at is None else ends_at - loop.time()
        if left_s is not None and left_s < -STALL_S_MAX:
            # The loop stood still. What the database said meanwhile has not been heard yet, so that
            # says nothing about it.
            ends_at, left_s = loop.time() + STALL_S_MAX, STALL_S_MAX
        if left_s is not None and left_s <= 0:
            break
        try:
            await asyncio.wait({task}, timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def _cancel_overdue(
    task: asyncio.Task[Any], plan: CancelPlan
) -> asyncio.CancelledError | None:
    _overdue.add(task)
    task.add_done_callback(_forget)
    task.cancel(plan.message)
    cancelled = await _wait_shielded(task, CANCEL_WAIT_S_MAX)
    if plan.ending is None:
        return cancelled
    return await _wait_shielded(plan.ending, CANCEL_WAIT_S_MAX) or cancelled


def _forget(task: asyncio.Task[Any]) -> None:
    _overdue.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning(
            "An overdue transaction failed in the end: %s",
            task.get_name(),
            extra={"task": task.get_name()},
            exc_info=error,
        )


def log_in_thread(log: Callable[[], None]) -> None:
    """Call `log` in a thread that ends with it."""
    threading.Thread(target=log, name="rowlock log", daemon=True).start()
