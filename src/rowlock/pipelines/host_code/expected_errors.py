"""Which errors out of `process` the host expects, and what comes of them: `retry_on` and `park_on`
of a pipeline, read once and checked.

Not here: what comes of an error that is none of these, or of several at once
(``pipelines/settling/raised.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from rowlock.errors import ModelError, OutcomeError, SettingsError
from rowlock.pipelines.outcomes import delay_of
from rowlock.rows.leased_table import LeasedTable

Delay: TypeAlias = timedelta | float | Callable[[Any], timedelta | float | None] | None
"""How long a row rests after an error: a duration, a function of the error, or the backoff."""
RetryOn: TypeAlias = Sequence[type[BaseException]] | Mapping[type[BaseException], Delay]
"""Errors that are retried; as a mapping, each with its delay."""
ParkOn: TypeAlias = Sequence[type[BaseException]]
"""Errors that set the row aside."""


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """What comes of an error.

    Attributes:
        parks: whether it sets the row aside.
        delay: how long the row rests otherwise.
    """

    parks: bool
    delay: Delay = None

    def delay_after(self, error: BaseException) -> timedelta | float | None:
        """Return how long the row rests after `error`, None for the backoff.

        Raises:
            BaseException: whatever the host's function raises, and `OutcomeError` if it returns no
                duration.
        """
        if not callable(self.delay):
            return self.delay
        try:
            delay = self.delay(error)
            return delay if delay is None else delay_of(delay)
        except BaseException as wrong:
            # Told together with what the function was asked about.
            raise wrong from error


class ExpectedErrors:
    """The errors that a pipeline expects.

    Attributes:
        rules: the outcome of each class of errors.
    """

    def __init__(self, rules: Mapping[type, ErrorRule]) -> None:
        self.rules = rules

    @classmethod
    def of(
        cls, name: str, leased: LeasedTable, *, retry_on: object, park_on: object
    ) -> ExpectedErrors:
        """Read what the host wrote in the pipeline of that `name` and table.

        Raises:
            SettingsError: one of these is no class of an exception, stands in both, or has no delay
                that can be.
            ModelError: they need `ScheduleColumns`, which the model does not have.
        """
        rules: dict[type, ErrorRule] = {}
        for error, delay in _delays(name, retry_on).items():
            _check_delay(name, leased, error, delay=delay)
            rules[error] = ErrorRule(parks=False, delay=delay)
        for error in _classes(name, "park_on", park_on):
            if error in rules:
                raise SettingsError(
                    f"{name}: {error.__name__} stands in retry_on and in park_on; take it out of"
                    " one of them",
                    pipeline=name,
                    settings=("retry_on", "park_on"),
                )
            _need_schedule(leased, f"{name}.park_on")
            rules[error] = ErrorRule(parks=True)
        return cls(rules)

    def rule_for(self, error: BaseException) -> ErrorRule | None:
        """Return what comes of `error`: of the rules for its class and those above it, the
        nearest.
        """
        if not self.rules:
            return None
        return next((self.rules[cls] for cls in type(error).__mro__ if cls in self.rules), None)


NOTHING_EXPECTED = ExpectedErrors({})


def _delays(name: str, retry_on: object) -> dict[type[BaseException], Any]:
    given = retry_on.values() if isinstance(retry_on, Mapping) else None
    classes = _classes(name, "retry_on", retry_on)
    return dict.fromkeys(classes) if given is None else dict(zip(classes, given, strict=True))


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
