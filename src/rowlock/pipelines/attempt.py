"""One attempt at host code, with every way in which it can end.

The one idea: host code may return, raise, be cancelled by us, cancel itself, or not end. Each
becomes a value, so that no worker ever dies of its host's code.

What ends in its first step, which is taken by hand, costs neither a task nor an `Attempt`.

One timer ends all attempts that take too long: all calls of one pipeline may take equally long, so
the one that began first is the first whose time is up. A timer for each would cost more than most
of what is done here for a row.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from rowlock.clock import monotonic
from rowlock.database.transaction import OUT_OF_TIME
from rowlock.errors import HOST_ERRORS, HostCodeError, ProcessCancelledError, describe
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.hooks import Surround, surrounded
from rowlock.pipelines.outcomes import copied, forget_raising
from rowlock.pipelines.settings import PipelineSettings
from rowlock.tasks import ENDED, LEFT_BEHIND, DaemonThreads


class Deadlines:
    """Calls what was added and not removed, once `timeout_s` has passed; never, if that is None."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, owner: object, act: Callable[[], None], now: float | None = None) -> None:
        if self._timeout_s is None:
            return
        at = (monotonic() if now is None else now) + self._timeout_s
        self._waiting[owner] = (at, act)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(at, self._look)

    def remove(self, owner: object) -> None:
        self._waiting.pop(owner, None)

    def _look(self) -> None:
        # The timer may be that of one that was removed since; it goes off all the same, and looks
        # who is next.
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting:
            owner, (at, act) = next(iter(self._waiting.items()))
            if at > now:
                self._timer = loop.call_at(at, self._look)
                return
            del self._waiting[owner]
            act()


T = TypeVar("T")

METHODS_MAX = 1000
"""Of at most so many methods it is remembered whether they are coroutine functions."""


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
    """`process` raised `error`."""

    error: BaseException


Result = Returned | Raised | Ended
Call: TypeAlias = Callable[[], Awaitable[Any]]


class RestOfCall:
    """A call after its first step. Every step runs in `variables`; `begin` takes the first one."""

    __slots__ = ("_call", "_variables", "_waits_for")

    def __init__(self, call: Awaitable[Any], variables: Context) -> None:
        self._call: Any = call.__await__()
        self._variables = variables

    def begin(self) -> None:
        """Take the first step; `StopIteration`, with the result, if it was the last one."""
        self._waits_for = self._variables.run(self._call.send, None)

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
        rest = RestOfCall(variables.run(call), variables)
        try:
            rest.begin()
        except StopIteration as stop:
            return Returned(copied(stop.value))
    except HOST_ERRORS as error:
        return _raised(error)
    return rest


class Attempt:
    """Runs one call of host code and can end it.

    A call that catches its cancellation may still return a value, which then counts: whether it can
    be applied is the lease's business.
    """

    def __init__(self, call: Call, *, deadlines: Deadlines, grace_s: float) -> None:
        self._call = call
        self._deadlines = deadlines
        self._grace_s = grace_s
        self._task: asyncio.Task[Any] | None = None
        self._on_abandoned: Callable[[], None] | None = None
        self._on_late_result: Callable[[Result], None] | None = None
        self._late_result: Result | None = None
        self._is_cancelled = False
        self._grace: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.ended: Ended | None = None
        self.is_abandoned = False

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def ends_within_grace(self, why: Ended) -> bool:
        """End it unless it was ended, wait for the grace at most; return whether it is over."""
        if self.is_running:
            self.end(why)
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiter}, timeout=self._grace_s)
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
            self._grace = asyncio.get_running_loop().call_later(self._grace_s, self._abandon)

    async def run_here(
        self, on_abandoned: Callable[[], None], now: float | None = None
    ) -> Result | None:
        """Run the call in the caller's task, which is what `end` cancels.

        If it has ignored `end` for `grace_s`, `on_abandoned` is called meanwhile, and it returns
        None in the end.
        """
        if self.ended is not None:
            return self.ended
        self._task, self._on_abandoned = asyncio.current_task(), on_abandoned
        self._deadlines.add(self, partial(self.end, Ended.TIMED_OUT), now)
        try:
            result: Returned | Raised = Returned(copied(await self._call()))
        except HOST_ERRORS as error:
            result = self._raised(error)
        finally:
            # Nothing runs between the last step of the host's code and this one.
            self._task = self._on_abandoned = None
            self._deadlines.remove(self)
            if self._grace is not None:
                self._grace.cancel()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        if self.is_abandoned:
            self._late_result = Ended.ABANDONED if self._is_cancelled else result
            if self._on_late_result is not None:
                self._on_late_result(self._late_result)
            return None
        return self._or_ended(result)

    def _or_ended(self, result: Returned | Raised) -> Result:
        if self.ended is None or isinstance(result, Returned):
            return result
        forget_raising(result.error)
        return self.ended

    def _raised(self, error: BaseException) -> Raised:
        message = error.args if isinstance(error, asyncio.CancelledError) else ()
        self._is_cancelled = message in ((ENDED,), (LEFT_BEHIND,))
        if message == (LEFT_BEHIND,) and not self.is_abandoned:
            self._abandon()
        return _raised(error)

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

    def _abandon(self) -> None:
        self.is_abandoned = True
        if self._on_abandoned is not None:
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
    method = getattr(function, "__func__", None)
    is_coroutine = (
        inspect.iscoroutinefunction(function) if method is None else _is_coroutine_method(method)
    )
    return call if is_coroutine else partial(_in_thread, call, threads)


@lru_cache(METHODS_MAX)
def _is_coroutine_method(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method)


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
    match thread.result():
        case Raised(error):
            raise error
        case Returned(value):
            # A plain function may still return a coroutine: it belongs to the loop.
            return (
                await _in_the_loop(value, unwanted=unwanted)
                if inspect.isawaitable(value)
                else value
            )


async def _in_the_loop(call: Awaitable[Any], *, unwanted: bool) -> Any:
    if not unwanted:
        return await call
    # Begun now, it would never hear of the cancellation that came while the thread ran.
    if inspect.iscoroutine(call):
        call.close()
    raise asyncio.CancelledError


CLEANUP_S_MAX = 3600.0
"""Longest time for one `on_stale` where `process` has no limit, in seconds."""


class HostCalls:
    """Makes attempts, which the callers begin; `threads` run plain functions of the host's."""

    def __init__(self, name: str, settings: PipelineSettings) -> None:
        limit = settings.process_timeout
        self._deadlines = Deadlines(None if limit is None else limit.total_seconds())
        self._cleanup_deadlines = self._deadlines if limit else Deadlines(CLEANUP_S_MAX)
        self._grace_s = settings.cancel_grace.total_seconds()
        # Twice as many as workers: abandoned calls must not keep all others waiting.
        self.threads = DaemonThreads(2 * settings.workers_num, name=f"rowlock {name}")
        self._abandoned: list[Attempt] = []

    def call(
        self,
        process: Callable[..., Any],
        item: PipelineItem[Any],
        surround: Sequence[Surround] = (),
    ) -> Call:
        """Return ``process(item)``, to be awaited, within what `surround` gives."""
        call = host_call(process, item, threads=self.threads)
        return partial(surrounded, call, surround, item) if surround else call

    def attempt(self, call: Call) -> Attempt:
        """Return an attempt at `call`, not begun."""
        return Attempt(call, deadlines=self._deadlines, grace_s=self._grace_s)

    def cleanup(self, on_stale: Callable[..., Any], item: object, outcome: object) -> Attempt:
        """Return an attempt at ``on_stale(item, outcome)``, not begun; it always has a limit."""
        call = host_call(on_stale, item, outcome, threads=self.threads)
        return Attempt(call, deadlines=self._cleanup_deadlines, grace_s=self._grace_s)

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
