"""The host's code, contained and bounded: its hooks, the errors that it expects, what it puts
around every attempt, and one attempt with every way in which it can end.

Host code may return, raise, be cancelled by us, cancel itself, or not end. Each becomes a value, so
that no worker dies of its host's code. What ends in its first step, which is taken by hand, costs
neither a task nor an `Attempt`.

Gates and surroundings concern all pipelines of a manager alike. What is around an attempt sees its
error and cannot swallow it; what it raises itself is logged and goes no further.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement
from sqlalchemy.exc import SQLAlchemyError

from rowlock.database.transaction import OUT_OF_TIME
from rowlock.errors import (
    HOST_ERRORS,
    ConfigurationError,
    HostCodeError,
    ModelError,
    OutcomeError,
    ProcessCancelledError,
    SettingsError,
    describe,
)
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.outcomes import copied, delay_of, forget_raising
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.expressions import with_names_of_its_own
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import compared_column
from rowlock.tasks import ENDED, LEFT_BEHIND, DaemonThreads

logger = get_logger(__name__)


def as_condition(given: object) -> ColumnElement[Any] | None:
    """Return the host's SQL expression with parameter names of its own; None if it is none."""
    # A mapped attribute, such as a boolean column, stands for its column.
    condition = getattr(given, "expression", given)
    return with_names_of_its_own(condition) if isinstance(condition, ColumnElement) else None


Gate = Callable[[LeasedTable, str], ColumnElement[bool]]
"""Returns a condition of every claim, for the table and the name of a pipeline."""
Surround = Callable[[PipelineItem[Any]], AbstractContextManager[object]]
"""Returns what is entered before `process` is called for an item, and left behind it."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What a host adds to every pipeline of a manager."""

    gates: tuple[Gate, ...] = ()
    surround: tuple[Surround, ...] = ()

    @classmethod
    def of(cls, gates: Iterable[Gate], surround: Iterable[Surround]) -> Seams:
        return cls(_functions("gates", gates), _functions("surround", surround))

    def conditions(self, leased: LeasedTable, pipeline: str) -> tuple[ColumnElement[bool], ...]:
        conditions = []
        for gate in self.gates:
            given = gate(leased, pipeline)
            condition = as_condition(given)
            if condition is None:
                raise ConfigurationError(
                    f"the gate {getattr(gate, '__qualname__', repr(gate)):.100} must return one SQL"
                    f" expression for {pipeline}, not {given!r:.100}"
                )
            conditions.append(condition)
        return tuple(conditions)


NO_SEAMS: Final = Seams()


def _functions(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    functions = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not all(callable(one) for one in functions):
        raise ConfigurationError(f"{name} is a list of functions, not {given!r:.100}")
    return functions


async def surrounded(
    call: Callable[[], Awaitable[T]], surround: Sequence[Surround], item: PipelineItem[Any]
) -> T:
    """Return the result of `call`, made within what `surround` gives for `item`."""
    fields = {"pipeline": item.lock_owner, "row_id": item.id}

    def leave(manager: AbstractContextManager[object], *raised: Any) -> None:
        try:
            manager.__exit__(*raised)
        except HOST_ERRORS as error:
            # One that is a generator lets the attempt's own error through.
            if error is not raised[1]:
                text = "%(pipeline)s: a context manager around an attempt raised on exit"
                logger.exception(text, fields)

    with ExitStack() as stack:
        for make in surround:
            try:
                manager = make(item)
                manager.__enter__()
            except HOST_ERRORS:
                text = "%(pipeline)s: a context manager around an attempt raised on entry"
                logger.exception(text, fields)
            else:
                stack.push(partial(leave, manager))
        return await call()


Delay: TypeAlias = timedelta | float | Callable[[Any], timedelta | float | None] | None
"""How long a row rests after an error: a duration, a function of the error, or the backoff."""
RetryOn: TypeAlias = Sequence[type[BaseException]] | Mapping[type[BaseException], Delay]
"""Errors that are retried; as a mapping, each with its delay."""
ParkOn: TypeAlias = Sequence[type[BaseException]]
"""Errors that set the row aside."""


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """The outcome of an error: the row is set aside, or rests for the `delay`."""

    parks: bool
    delay: Delay = None

    def delay_after(self, error: BaseException) -> timedelta | float | None:
        """Return how long the row rests, None for the backoff; host code may raise anything."""
        if not callable(self.delay):
            return self.delay
        try:
            delay = self.delay(error)
            return delay if delay is None else delay_of(delay)
        except Exception as wrong:
            # Logged together with what the function was asked about.
            raise wrong from error


ErrorRules: TypeAlias = dict[type, ErrorRule]


def error_rules(name: str, leased: LeasedTable, *, retry_on: object, park_on: object) -> ErrorRules:
    """Read `retry_on` and `park_on` as the host wrote them."""
    rules: ErrorRules = {}
    for error in _classes(name, "retry_on", retry_on):
        delay = retry_on[error] if isinstance(retry_on, Mapping) else None
        _check_delay(name, leased, error, delay=delay)
        rules[error] = ErrorRule(parks=False, delay=delay)
    for error in _classes(name, "park_on", park_on):
        if error in rules:
            raise SettingsError(
                f"{name}: {error.__name__} stands in retry_on and in park_on; take it out of one of"
                " them",
                pipeline=name,
                settings=("retry_on", "park_on"),
            )
        _need_schedule(leased, f"{name}.park_on")
        rules[error] = ErrorRule(parks=True)
    return rules


def rule_for(rules: ErrorRules, error: BaseException) -> ErrorRule | None:
    """Return the rule for the nearest class of `error`; None if there is none."""
    return next((rules[cls] for cls in type(error).__mro__ if cls in rules), None)


def _classes(name: str, setting: str, given: object) -> tuple[type[BaseException], ...]:
    # One class alone is what `except` would take as well.
    if isinstance(given, type):
        given = (given,)
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise SettingsError(
            f"{name}.{setting} is a tuple of exception classes, such as (ConnectionError,), not"
            f" {given!r:.100}",
            pipeline=name,
            settings=(setting,),
        )
    classes = tuple(given)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise SettingsError(
                f"{name}.{setting} names {one!r:.100}, which is no exception class; write the"
                " class, without brackets behind it",
                pipeline=name,
                settings=(setting,),
            )
    return classes


def _check_delay(name: str, leased: LeasedTable, error: type, *, delay: object) -> None:
    if delay is None:
        return
    _need_schedule(leased, f"the delay of {error.__name__} in {name}.retry_on")
    if callable(delay):
        return
    try:
        delay_of(delay)  # type: ignore[arg-type]
    except OutcomeError:
        raise SettingsError(
            f"{name}.retry_on: the delay of {error.__name__} is {delay!r:.100}; it must be a"
            " timedelta, seconds, or a function of the error that returns one of them",
            pipeline=name,
            settings=("retry_on",),
        ) from None


def _need_schedule(leased: LeasedTable, what: str) -> None:
    if not leased.has_schedule:
        raise ModelError(
            f"{what} needs ScheduleColumns, which {leased.name} does not have; mix them in",
            model=leased.name,
        )


def ready_condition(
    name: str, leased: LeasedTable, ready: Callable[[], ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Return what the host's `ready` says; `ModelError` if that is no SQL expression."""
    try:
        given = ready()
    except asyncio.CancelledError as error:
        raise HostCodeError(f"{name}.ready() ended with {describe(error)}") from error
    condition = as_condition(given)
    if condition is None:
        raise ModelError(
            f"{name}.ready() must return one SQL expression, such as {leased.name}.status =="
            f" 'submitted', not {given!r:.100}",
            model=leased.name,
        )
    return condition


def intent_columns(name: str, leased: LeasedTable, intent: object) -> tuple[Column[Any], ...]:
    """Return the columns of `intent`; `ModelError` for one unknown, or written by rowlock."""
    if isinstance(intent, str) or not isinstance(intent, Sequence):
        raise ModelError(
            f"{name}.intent is a list of columns, not {intent!r:.100}", model=leased.name
        )
    try:
        columns = tuple(dict.fromkeys(compared_column(leased, key) for key in intent))
    except OutcomeError as error:
        raise ModelError(
            f"{name}.intent: {error.args[0]}", model=leased.name, column=error.column
        ) from None
    for column in columns:
        if column.key in leased.lease_columns or column is leased.key:
            raise ModelError(
                f"{name}.intent names {leased.name}.{column.name}, which no service changes for"
                " itself; list columns of the host's",
                model=leased.name,
                column=column.name,
            )
    return columns


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
    """Runs one call of host code and can end it. One that catches its cancellation may still return
    a value, which then counts: whether it can be applied is the lease's business.
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
        """Call `act` with what an abandoned call comes to, at once if it has ended."""
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
        """Run the call in the caller's task, which is what `end` cancels. If it ignores that for
        `grace_s`, `on_abandoned` is called meanwhile, and it returns None in the end.
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
    is_coroutine = _is_coroutine_function(getattr(function, "__func__", function))
    return call if is_coroutine else partial(_in_thread, call, threads)


# Asked for each row: an answer that is kept costs a third of a microsecond less.
_is_coroutine_function = lru_cache(1000)(inspect.iscoroutinefunction)


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
        # Forgets those that have ended meanwhile.
        self._abandoned = [*self.abandoned(), attempt]

    def abandoned(self) -> list[Attempt]:
        return [attempt for attempt in self._abandoned if attempt.is_running]

    def close(self) -> None:
        """Let the threads end, unless an abandoned call runs: its late result may need one."""
        if not self.abandoned():
            self.threads.shutdown(wait=False)
