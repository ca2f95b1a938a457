"""What the host writes, as its pipeline's actors see it: hooks, errors that it expects, and what it
puts around every attempt.

Gates and surroundings are added to every pipeline of a manager, without a subclass: a pause, a span
and a field of log lines concern all pipelines alike. Gates are applied when a claim is built,
surroundings when `process` is called; pipelines do not know of them. Observers harm no outcome:
what is around an attempt sees its error and cannot swallow it, and what it raises itself is logged
and goes no further.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement

from rowlock.errors import (
    HOST_ERRORS,
    ConfigurationError,
    HostCodeError,
    ModelError,
    OutcomeError,
    SettingsError,
    describe,
)
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.outcomes import delay_of
from rowlock.rows.expressions import with_names_of_its_own
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import compared_column

logger = get_logger(__name__)

T = TypeVar("T")


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
    """What a host adds to every pipeline of a manager; `surround` is left in the reverse order."""

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
    except CancelledError as error:
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
