"""Tasks and threads that outlast their callers: shielded, supervised, and calls in daemon threads.

*Daemon threads*: Python joins the threads of ``ThreadPoolExecutor`` before it ends, and
``asyncio.run`` those of ``asyncio.to_thread``; one call that hangs there keeps the process.

*Shielded*: a task cancelled in the middle of a SQLite transaction leaves the file's write lock held
until the garbage collector finds the connection, and a storm of cancellations leaves PostgreSQL
running the statement. So `finish` runs work to its end in a task of its own, bounded in time, and
the cancelled caller waits for it.

*Supervised*: a loop that ends without being asked to is logged, shown in `health`, and replaced
after a short rest. An event loop that shuts down cancels all loops at once, and that is obeyed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from rowlock import events
from rowlock.clock import exponential
from rowlock.errors import HostCodeError, PipelineError, TransactionTimeout, describe
from rowlock.logs import Fields, get_logger

logger = get_logger(__name__)

T = TypeVar("T")


async def as_host_code(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call`, in a task of rowlock's; a cancellation that escapes without this task being
    asked to end becomes a `HostCodeError`.
    """
    try:
        return await call()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HostCodeError("a CancelledError escaped from code that was not cancelled") from error


def as_ordinary(error: BaseException) -> Exception:
    """Return `error`, or one about it where raising it in a task would end the event loop, become
    another error (``StopIteration``), or look as if the caller had been cancelled.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    ordinary = HostCodeError(describe(error))
    ordinary.__cause__ = error
    return ordinary


P = ParamSpec("P")

ENDED = "ended by rowlock"
"""Says of a cancellation that the call in a thread is waited for: it is an attempt's own."""

LEFT_BEHIND = "left behind in its thread"
"""Says of a cancellation that the event loop ends, and that the call still runs."""


class DaemonThreads(Executor):
    """A pool of daemon threads. They end when it is shut down or collected; nothing waits."""

    def __init__(self, threads_max: int, *, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._begun = 0
        self._is_shut = False
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._is_shut:
                raise RuntimeError("the threads were shut down")
            if not self._idle.acquire(blocking=False) and self._begun < self._threads_max:
                threading.Thread(
                    target=_work,
                    args=(self._calls, self._idle),
                    name=f"{self._name} {self._begun}",
                    daemon=True,
                ).start()
                self._begun += 1
            self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further call; the threads end after those that were submitted."""
        del wait, cancel_futures
        with self._lock:
            self._is_shut = True
            self._calls.put(None)


def _work(calls: SimpleQueue[Any], idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it would keep what it was called with
        idle.release()
    calls.put(None)  # for the next thread


CANCEL_WAIT_S_MAX = 3.0
"""How long a transaction that is out of time may take to be cancelled, in seconds."""

STALL_S_MAX = 1.0
"""A timeout later than this shows a stalled loop, which gets so long to catch up, in seconds."""

_overdue: set[asyncio.Task[Any]] = set()


class CancelPlan(NamedTuple):
    """The `message` of an overdue transaction's cancellation, and the task that ends it."""

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

    Raises:
        TransactionTimeout: `work` did not end within `timeout`.
        PipelineError: `work` let a cancellation escape that was not its caller's.
    """
    task = asyncio.create_task(work, name=f"rowlock: {purpose}")
    cancelled = await _wait_shielded(task, None if timeout is None else timeout.total_seconds())
    out_of_time = not task.done()
    if out_of_time:
        cancelled = await _cancel_overdue(task, plan_cancel(task)) or cancelled
    if cancelled is not None:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log = logger.warning if writes else logger.debug
            extra = {"purpose": purpose}
            log("The transaction of a cancelled caller failed: %(purpose)s", extra, exc_info=error)
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
            # The loop stood still, and answers of the database may be waiting to be read.
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
        extra = {"task": task.get_name()}
        logger.warning("An overdue transaction failed in the end: %(task)s", extra, exc_info=error)


def log_in_thread(log: Callable[[str, Fields], None], text: str, fields: Fields) -> None:
    threading.Thread(target=log, args=(text, fields), name="rowlock log", daemon=True).start()


RESTART_DELAY_S = 0.1
RESTART_DELAY_S_MAX = 5.0

Loop = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Runs the loops of one pipeline; `restarts` counts those that were replaced."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False
        self.restarts = 0

    def keep(self, name: str, loop: Loop, *, deaths: int = 0) -> None:
        """Run `loop` under `name` until it returns by itself or `stop` is called."""
        if not self._is_stopped:
            task = asyncio.create_task(loop(), name=f"rowlock: {self._pipeline} {name}")
            self._loops[name] = task
            task.add_done_callback(partial(self._ended, name, loop, deaths=deaths))

    def alive(self) -> dict[str, bool]:
        return {name: not task.done() for name, task in self._loops.items()}

    @property
    def is_ending(self) -> bool:
        """Whether the event loop ends everything: it cancels all loops that still run."""
        loops = [task for task in self._loops.values() if task.cancelling() or not task.done()]
        return bool(loops) and all(task.cancelling() for task in loops)

    async def wait(self, name: str, *, timeout_s: float) -> bool:
        """Wait until a loop has returned; False if `timeout_s` was not enough."""
        task = self._loops.get(name)
        return task is None or bool((await asyncio.wait({task}, timeout=timeout_s))[0])

    async def stop(self, *, timeout_s: float | None = None) -> None:
        self._is_stopped = True
        loops = [task for task in self._loops.values() if not task.done()]
        for task in loops:
            task.cancel()
        if loops:
            await asyncio.wait(loops, timeout=timeout_s)

    def _ended(self, name: str, loop: Loop, task: asyncio.Task[None], *, deaths: int) -> None:
        if task.cancelled() and (self._is_stopped or self.is_ending):
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        self.restarts += 1
        is_cancelled = isinstance(error, asyncio.CancelledError)
        why = "cancelled from outside" if is_cancelled else describe(error)
        text = "%(pipeline)s: the %(loop)s died and is replaced: %(error)s"
        extra = {"pipeline": self._pipeline, "loop": name, "error": why}
        logger.error(text, extra, exc_info=None if is_cancelled else error)
        events.emit(events.LoopReplaced(self._pipeline, name, why))
        if self._loops.get(name) is not task:
            return  # it was left, and another one of its name runs
        deaths += 1
        delay_s = exponential(deaths, first_s=RESTART_DELAY_S, most_s=RESTART_DELAY_S_MAX)
        begin = partial(self.keep, name, loop, deaths=deaths)
        asyncio.get_running_loop().call_later(delay_s, begin)
