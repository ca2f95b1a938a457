"""One attempt at host code, with every way in which it can end.

Host code may return, raise, be cancelled by us, cancel itself, or not end. Each becomes a value, so
that no worker dies of its host's code. What ends in its first step, which is taken by hand, costs
neither a task nor an `Attempt`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from rowlock.database.transaction import OUT_OF_TIME
from rowlock.errors import HOST_ERRORS, HostCodeError, ProcessCancelledError, describe
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.hooks import Surround, surrounded
from rowlock.pipelines.outcomes import copied, forget_raising
from rowlock.pipelines.settings import PipelineSettings
from rowlock.tasks import ENDED, LEFT_BEHIND, DaemonThreads

T = TypeVar("T")


class Ended(Enum):
    """Why an attempt was ended before it returned; one that is `ABANDONED` still runs."""

    LEASE_LOST = "the lease was lost"
    TIMED_OUT = "process took longer than process_timeout"
    INTERRUPTED = "the pipeline is shutting down"
    ABANDONED = "process ignored its cancellation"


@dataclass(frozen=True, slots=True)
class Returned:
    """`process` returned `value`, which is an outcome as it was then."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    error: BaseException


Result = Returned | Raised | Ended
Call: TypeAlias = Callable[[], Awaitable[Any]]


class RestOfCall:
    """A call after its first step. Every step runs in `variables`."""

    __slots__ = ("_call", "_variables", "_waits_for")

    def __init__(self, call: Generator[Any, Any, Any], variables: Context, waits_for: Any) -> None:
        self._call, self._variables, self._waits_for = call, variables, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        run, call, waits_for = self._variables.run, self._call, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except HOST_ERRORS as error:
                    waits_for = run(call.throw, error)
                else:
                    waits_for = run(call.send, sent)
        except StopIteration as stop:
            return stop.value


def first_step(call: Call, variables: Context) -> Returned | Raised | RestOfCall:
    """Take the first step of `call` in `variables`; return the rest if it was not the last one."""
    try:
        steps: Any = variables.run(call).__await__()
        try:
            waits_for = variables.run(steps.send, None)
        except StopIteration as stop:
            return Returned(copied(stop.value))
    except HOST_ERRORS as error:
        return _raised(error)
    return RestOfCall(steps, variables, waits_for)


class Attempt:
    """Runs one call of host code and can end it; None as `timeout_s` sets no limit.

    A call that catches its cancellation may still return a value, which then counts: whether it can
    be applied is the lease's business.
    """

    def __init__(self, call: Call, *, timeout_s: float | None, grace_s: float) -> None:
        self._call = call
        self._timeout_s, self._grace_s = timeout_s, grace_s
        self._task: asyncio.Task[Any] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._on_abandoned: Callable[[], None] | None = None
        self._on_late_result: Callable[[Result], None] | None = None
        self._late_result: Result | None = None
        self.ended: Ended | None = None
        self.is_abandoned = False

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def ends_within_grace(self, why: Ended) -> bool:
        """End it unless it was ended, wait for the grace at most; return whether it is over."""
        if (task := self._task) is not None:
            self.end(why)
            await asyncio.wait({task}, timeout=self._grace_s)
        return not self.is_running

    def on_late_result(self, act: Callable[[Result], None]) -> None:
        """Call `act` with what an abandoned call comes to in the end, at once if it has ended."""
        self._on_late_result = act
        if self._late_result is not None:
            act(self._late_result)

    def end(self, why: Ended) -> None:
        """Cancel the host's code; the first reason counts, unless the lease is lost later."""
        if self.ended is not None and why is not Ended.LEASE_LOST:
            return
        first, self.ended = self.ended is None, why
        if first and self._task is not None:
            self._task.cancel(ENDED)
            self._call_later(self._grace_s, self._abandon)

    async def run_here(self, on_abandoned: Callable[[], None]) -> Result | None:
        """Run the call in the caller's task, which is what `end` cancels.

        If it has ignored `end` for `grace_s`, `on_abandoned` is called meanwhile, and it returns
        None in the end.
        """
        if self.ended is not None:
            return self.ended
        self._task, self._on_abandoned = asyncio.current_task(), on_abandoned
        if self._timeout_s is not None:
            self._call_later(self._timeout_s, self.end, Ended.TIMED_OUT)
        is_cancelled = False
        try:
            result: Result = Returned(copied(await self._call()))
        except HOST_ERRORS as error:
            message = error.args if isinstance(error, asyncio.CancelledError) else ()
            is_cancelled = message in ((ENDED,), (LEFT_BEHIND,))
            if message == (LEFT_BEHIND,):
                self._abandon()
            result = _raised(error)
        finally:
            # Nothing runs between the last step of the host's code and this one.
            self._task = self._on_abandoned = None
            for timer in self._timers:
                timer.cancel()
        if self.is_abandoned:
            self._late_result = Ended.ABANDONED if is_cancelled else result
            if self._on_late_result is not None:
                self._on_late_result(self._late_result)
            return None
        return self._or_ended(result)

    def _or_ended(self, result: Result) -> Result:
        if self.ended is None or not isinstance(result, Raised):
            return result
        forget_raising(result.error)
        return self.ended

    async def run(self) -> Result:
        """Run the call in a task of its own, until it ends, or has ignored `end` for `grace_s`."""
        left: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        here = self.run_here(partial(left.set_result, None))
        task = asyncio.create_task(here, name="rowlock: process")
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.end(Ended.INTERRUPTED)
            raise
        if not task.done():
            return Ended.ABANDONED
        # One that is cancelled before its first step runs no line of its own.
        error = _cancelled_by_itself() if task.cancelled() else task.exception()
        return Raised(error) if error is not None else task.result() or Ended.ABANDONED

    def _call_later(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        timer = asyncio.get_running_loop().call_later(delay_s, act, *args)
        self._timers.append(timer)

    def _abandon(self) -> None:
        is_first, self.is_abandoned = not self.is_abandoned, True
        if is_first and self._on_abandoned is not None:
            self._on_abandoned()


async def contained(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Call host code within a transaction of ours; what it raises is reported as the host's, not
    as the database's.

    A ``TimeoutError`` of the host's own would pass for an outage that is to be waited out, and a
    stray cancellation for ours. What the database said to the host's own statements is raised as it
    is, and so is the cancellation of a transaction that is out of time.
    """
    try:
        return await function(*args)
    except SQLAlchemyError:
        raise
    except HOST_ERRORS as error:
        host_error = _raised(error).error
        raise HostCodeError(describe(host_error)) from host_error


def host_call(function: Callable[..., Any], *args: object, threads: Executor) -> Call:
    """Return ``function(*args)`` to await: in the loop, or a plain function in a thread."""
    call = partial(function, *args)
    return call if inspect.iscoroutinefunction(function) else partial(_in_thread, call, threads)


def _cancelled_by_itself() -> ProcessCancelledError:
    return ProcessCancelledError(
        "a cancellation escaped from process; catch it where a task of yours is awaited"
    )


def _raised(error: BaseException) -> Raised:
    if not isinstance(error, asyncio.CancelledError):
        return Raised(error)
    if error.args == (OUT_OF_TIME,):
        # Ours, of a transaction: the host's code waited for the database.
        raise error
    return Raised(_cancelled_by_itself())


async def _in_thread(call: Callable[[], Any], threads: Executor) -> Any:
    unwanted = False
    # A thread begins with no context variables; a copy, since two calls may not be in one context
    # at a time.
    variables = copy_context()

    def in_the_thread() -> Returned | Raised:
        if unwanted:
            return Raised(asyncio.CancelledError())
        try:
            return Returned(copied(variables.run(call)))
        except HOST_ERRORS as error:
            return Raised(error)

    thread = asyncio.get_running_loop().run_in_executor(threads, in_the_thread)
    while not thread.done():
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError as cancellation:
            # A thread that runs is waited for, and left behind when the grace is over.
            unwanted = True
            if cancellation.args != (ENDED,):
                raise asyncio.CancelledError(LEFT_BEHIND) from None
    result = thread.result()
    if isinstance(result, Raised):
        raise result.error
    # A plain function may still return a coroutine: it belongs to the loop.
    return (
        await _in_the_loop(result.value, unwanted=unwanted)
        if inspect.isawaitable(result.value)
        else result.value
    )


async def _in_the_loop(call: Awaitable[Any], *, unwanted: bool) -> Any:
    if not unwanted:
        return await call
    # Begun now, it would never hear of the cancellation that came while the thread ran.
    if inspect.iscoroutine(call):
        call.close()
    raise asyncio.CancelledError


class HostCalls:
    """Makes attempts, which the callers begin; `threads` run plain functions of the host's."""

    def __init__(self, name: str, settings: PipelineSettings) -> None:
        limit = settings.process_timeout
        self._timeout_s = None if limit is None else limit.total_seconds()
        self._grace_s = settings.cancel_grace.total_seconds()
        # Twice as many as workers: abandoned calls must not keep all others waiting.
        self.threads = DaemonThreads(2 * settings.workers_num, name=f"rowlock {name}")
        self._abandoned: list[Attempt] = []

    def call(
        self,
        function: Callable[..., Any],
        item: PipelineItem[Any],
        *more: object,
        surround: Sequence[Surround] = (),
    ) -> Call:
        """Return ``function(item, *more)``, to be awaited, within what `surround` gives."""
        call = host_call(function, item, *more, threads=self.threads)
        return partial(surrounded, call, surround, item) if surround else call

    def attempt(self, call: Call, *, timeout_s: float | None = None) -> Attempt:
        """Return an attempt, not begun; its limit is that of `process`, or else `timeout_s`."""
        return Attempt(call, timeout_s=self._timeout_s or timeout_s, grace_s=self._grace_s)

    def abandon(self, attempt: Attempt) -> None:
        """Remember an attempt that would not end, and forget those that have ended meanwhile."""
        self._abandoned = [*self.abandoned(), attempt]

    def abandoned(self) -> list[Attempt]:
        """Return the abandoned attempts that still run; as many as the host lets hang."""
        return [attempt for attempt in self._abandoned if attempt.is_running]

    def close(self) -> None:
        """Let the threads end, unless an abandoned call runs: its late result may need one."""
        if not self.abandoned():
            self.threads.shutdown(wait=False)
