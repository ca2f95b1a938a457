"""What `process` may return or raise: pure data, copied and checked before a transaction is opened.

An outcome is an exception, too: code that `process` calls may raise it instead of returning it. It
is copied when `process` returns, since the host may go on changing its dicts and lists.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, get_args
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.errors import OutcomeError, describe, shorten
from rowlock.leases.item import PipelineItem
from rowlock.rows.assignments import split
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import ColumnKey, Values, column_values, columns_written, compared_column

ClassT = TypeVar("ClassT", bound=type[BaseException])


def raisable(cls: ClassT) -> ClassT:
    """Let instances of a frozen dataclass that is an exception be raised and pickled.

    The trap this closes: a frozen dataclass refuses every assignment, ``__traceback__`` by
    ``contextlib`` included, which would replace what was raised by a ``FrozenInstanceError``. And
    an exception is pickled by its positional arguments, which would lose all others on the way out
    of a process pool.
    """
    given: Any = cls
    frozen = frozenset(field.name for field in fields(given))

    def set_unless_frozen(self: BaseException, name: str, value: object) -> None:
        # Python, ``contextlib`` and libraries that follow errors write on what is on its way.
        if name in frozen:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def reduce(self: BaseException) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in frozen}
        return _made_anew, (type(self), values | vars(self) | {"args": self.args})

    # As methods, a type checker would take the dataclass for one that is not frozen.
    setattr(cls, "__setattr__", set_unless_frozen)  # noqa: B010
    setattr(cls, "__reduce__", reduce)  # noqa: B010
    return cls


def _made_anew(cls: type[BaseException], values: dict[str, Any]) -> BaseException:
    made = cls.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


DELAY_MAX = timedelta(days=366)
"""Longest ``after`` of an outcome."""

NOTHING: Final = ()
Also: TypeAlias = Callable[[AsyncSession, datetime], Awaitable[None]]
HintTarget: TypeAlias = str | type
"""A model, or its class name."""


@dataclass(frozen=True, slots=True)
class Apply:
    """The attempt succeeded: write `values` and unlock the row.

    Attributes:
        values: update map of the row; `NOW_PLACEHOLDER` stands for the transaction's time.
        related: update maps of related rows that this item has locked
            (`PipelineItem.lock_related`): ``{row: values}``, or ``{(Model, key): values}`` where
            rows are not hashable.
        also: runs in the same transaction after the guard matched, as ``await also(session, now)``;
            it must not commit. Where the database rolls that back (an outage, a serialization
            failure, a deadlock) it runs again in the next one, so it must have no other effect than
            what it writes through `session`.
        after: when the row is due again, from now; default `min_processing_interval`. Needs
            `ScheduleColumns`.
        due_at: when the row is due again, as an aware time, instead of `after`; at once if that is
            over. Needs `ScheduleColumns`.
        unless_changed: columns that must still be as they were in ``item.row``, or nothing is
            written.
        hint: models to hint after the commit.
    """

    values: Values = field(default_factory=dict)
    related: Mapping[Any, Values] = field(default_factory=dict, kw_only=True)
    also: Also | None = field(default=None, kw_only=True)
    after: timedelta | float | None = field(default=None, kw_only=True)
    due_at: datetime | None = field(default=None, kw_only=True)
    unless_changed: Sequence[ColumnKey] = field(default=(), kw_only=True)
    hint: Sequence[HintTarget] | HintTarget = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Delete:
    """The attempt succeeded, and the row is no longer needed: delete it.

    The row is deleted by SQL: what refers to it is deleted by the database (``ON DELETE CASCADE``)
    or by `also`, not by cascades of the ORM.

    Attributes:
        related: as of `Apply`.
        also: as of `Apply`; runs before the row is deleted.
        unless_changed: columns that must still be as they were in ``item.row``, or nothing is
            deleted.
        hint: models to hint after the commit.
    """

    related: Mapping[Any, Values] = field(default_factory=dict, kw_only=True)
    also: Also | None = field(default=None, kw_only=True)
    unless_changed: Sequence[Any] = field(default=(), kw_only=True)
    hint: Sequence[HintTarget] | HintTarget = field(default=(), kw_only=True)


@raisable
@dataclass(frozen=True, slots=True)
class Retry(Exception):
    """The attempt failed: unlock the row and try again later.

    `process` returns it, or code that it calls raises it. ``except Exception`` catches what is
    raised.

    Attributes:
        after: rest until then; default capped exponential backoff. Needs `ScheduleColumns`.
        error: what went wrong; an exception or a text, stored shortened in `last_error`. Of a
            `Retry` that is raised: by default what it was raised from.
        values: update map of the row, written all the same.
    """

    after: timedelta | float | None = None
    error: BaseException | str | None = field(default=None, kw_only=True)
    values: Values = field(default_factory=dict, kw_only=True)


@raisable
@dataclass(frozen=True, slots=True)
class Reset(Exception):
    """A related lock was not available: unlock the row but keep its owner, so that this pipeline
    comes back for it first.

    `process` returns it, or code that it calls raises it.
    """


@raisable
@dataclass(frozen=True, slots=True)
class Park(Exception):
    """Set the row aside until it is unparked. Needs `ScheduleColumns`.

    `process` returns it, or code that it calls raises it.
    """

    reason: str


Outcome: TypeAlias = Apply | Retry | Reset | Park | Delete
OUTCOMES: Final = get_args(Outcome)

SUCCESSES: Final = (Apply, Delete)
"""Outcomes of attempts that succeeded, which may bring more with them."""


RAISABLE: Final = (Retry, Reset, Park)


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield what was raised, without the groups in which task groups wrap it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves_of(one)
    else:
        yield error


def forget_raising(error: BaseException) -> None:
    """Drop what raising left on the outcomes in `error`, once they are taken.

    A constant of a host's module, raised again and again, would keep the frames of every attempt
    with all that is in them, and the cause of an earlier attempt.
    """
    for leaf in leaves_of(error):
        if isinstance(leaf, RAISABLE):
            # Past the class of the host's, which may be a frozen dataclass.
            for name in ("__traceback__", "__cause__", "__context__"):
                BaseException.__setattr__(leaf, name, None)
            BaseException.__setattr__(leaf, "__suppress_context__", False)


def as_outcome(returned: object, *, hook: str = "process", allows_none: bool = True) -> Outcome:
    """Return what the host's `hook` returned as an outcome; None is ``Apply()``, if it may be."""
    if isinstance(returned, Outcome):
        return returned
    if returned is None:
        if allows_none:
            return Apply()
        raise OutcomeError(
            f"{hook} returned None: return Apply(...), or annotate it with -> None (or with"
            " -> Outcome | None) if that means Apply()"
        )
    if inspect.iscoroutine(returned):
        returned.close()
        raise OutcomeError(
            f"{hook} returned the coroutine {returned.__qualname__}, which was not awaited: write"
            " `return await ...`"
        )
    if isinstance(returned, type):
        name = returned.__name__
        raise OutcomeError(f"{hook} returned the class {name}: write {name}()")
    names = ", ".join(kind.__name__ for kind in OUTCOMES)
    raise OutcomeError(
        f"{hook} must return {names} or None, not an object of type {type(returned).__name__}"
    )


def check_outcome(leased: LeasedTable, outcome: Outcome) -> None:
    """Refuse an outcome that cannot be written to this model, before any transaction is opened."""
    if isinstance(outcome, Apply | Retry):
        columns_written(leased, outcome.values)
        if isinstance(outcome, Apply) and has_values_alone(outcome):
            return
        _check_due(leased, outcome)
    if isinstance(outcome, Apply | Delete):
        _check_beside(leased, outcome)
    if isinstance(outcome, Park):
        _need_schedule(leased, "Park")
        if not isinstance(outcome.reason, str):
            raise OutcomeError("Park takes a text that says why")


def has_values_alone(outcome: Apply) -> bool:
    """Whether an outcome is what nearly every one is: values, and nothing else."""
    return (
        outcome.after is None
        and outcome.due_at is None
        and outcome.also is None
        and outcome.unless_changed is NOTHING
        and outcome.hint is NOTHING
        and type(outcome.related) is dict
        and not outcome.related
    )


def delay_of(after: timedelta | float) -> timedelta:
    """Return a duration, or a number of seconds, as a timedelta from zero to `DELAY_MAX`."""
    try:
        delay = after if isinstance(after, timedelta) else timedelta(seconds=after)
    except (TypeError, ValueError, OverflowError):
        delay = -DELAY_MAX
    if not timedelta(0) <= delay <= DELAY_MAX:
        raise OutcomeError(
            f"after must be a timedelta or seconds, from zero to {DELAY_MAX.days} days"
        )
    return delay


def hint_targets(hint: Sequence[HintTarget] | HintTarget) -> Sequence[HintTarget]:
    """Return the models to hint; one alone may be given without a list."""
    targets = (hint,) if isinstance(hint, str | type) else _sequence(hint, "hint")
    if not all(isinstance(target, str | type) for target in targets):
        raise OutcomeError("hint takes models or their names")
    return targets


def error_text(error: BaseException | str | None) -> str | None:
    if error is None:
        return None
    return shorten(error) if isinstance(error, str) else describe(error)


def _check_beside(leased: LeasedTable, outcome: Apply | Delete) -> None:
    for key in _sequence(outcome.unless_changed, "unless_changed"):
        compared_column(leased, key)
    hint_targets(outcome.hint)
    if outcome.also is not None and not callable(outcome.also):
        raise OutcomeError("also must be a function: async def also(session, now)")


def _check_due(leased: LeasedTable, outcome: Apply | Retry) -> None:
    if outcome.after is not None:
        _need_schedule(leased, f"{type(outcome).__name__}(after=...)")
        delay_of(outcome.after)
    due_at = outcome.due_at if isinstance(outcome, Apply) else None
    if due_at is None:
        return
    _need_schedule(leased, "Apply(due_at=...)")
    if outcome.after is not None:
        raise OutcomeError("Apply takes after or due_at, not both: each says when the row is due")
    if not isinstance(due_at, datetime) or due_at.utcoffset() is None:
        raise OutcomeError(
            "due_at must be an aware datetime, such as datetime.now(UTC) + timedelta(hours=1); for"
            " a time from now, write after=..."
        )
    try:
        due_at.astimezone(UTC)
    except OverflowError:
        raise OutcomeError("due_at must be between the years 1 and 9999 in UTC") from None


def _sequence(value: object, name: str) -> Sequence[Any]:
    if type(value) is tuple:
        return value
    if isinstance(value, str) or not isinstance(value, Sequence | Set):
        raise OutcomeError(f"{name} must be a list, not {type(value).__name__}")
    return tuple(value)


def _need_schedule(leased: LeasedTable, what: str) -> None:
    if not leased.has_schedule:
        raise OutcomeError(
            f"{what} needs ScheduleColumns, which {leased.name} does not have; mix them in"
        )


RELATED_KINDS_MAX = 100
"""Most kinds of update maps in `related` of one outcome: of one kind are those that share a
statement. So many take half of `database_timeout` where a round trip takes 25 ms.
"""


def related_items(related: object) -> Iterable[tuple[Any, Values]]:
    if type(related) is not dict and not isinstance(related, Mapping):
        raise OutcomeError(
            f"related must be a dict of locked rows and values, not {type(related).__name__}"
        )
    return related.items()


def check_related(item: PipelineItem[Any], related: object) -> None:
    """Refuse what cannot be written to related rows of `item`, before a transaction is opened."""
    seen, kinds = set[tuple[type, Any]](), set[Hashable]()
    for named, values in related_items(related):
        leased, key = item.held_rows().find(named)
        written = column_values(leased, values)
        kinds.add((leased.model, split(written)[0]))
        if len(kinds) > RELATED_KINDS_MAX:
            raise OutcomeError(
                f"related writes more than {RELATED_KINDS_MAX} kinds of values, each of which costs"
                " a statement; name the same columns for all rows, and write values, or SQL"
                " expressions that differ in bound values alone"
            )
        if (leased.model, key) in seen:
            raise OutcomeError(f"{leased.name} {key} is in related twice")
        seen.add((leased.model, key))


T = TypeVar("T")


def copied(returned: T) -> T:
    """Return an unchecked outcome with dicts and lists of its own, so that it stays as it is now;
    anything else as it is. Values of other kinds are shared with the host.
    """
    given: Any = returned
    if type(given) is Apply and has_values_alone(given):
        # What nearly every outcome is.
        return Apply(_copied_map(given.values))  # type: ignore[return-value]
    kind = next((known for known in OUTCOMES if isinstance(given, known)), None)
    if kind is None:
        return returned
    own = {name: copy_of(getattr(given, name)) for name, copy_of in _COPIES if hasattr(kind, name)}
    if type(given) is kind:
        return replace(given, **own)  # type: ignore[no-any-return]
    # Of a host's own class it is the host's object, with what that keeps beside the fields:
    # `on_stale` cleans up by it.
    for name, value in own.items():
        object.__setattr__(given, name, value)
    return returned


def _copied_map(values: Any) -> Any:
    if type(values) is dict and _FLAT.issuperset(map(type, values.values())):
        return values.copy()
    if type(values) is not dict and not isinstance(values, Mapping):
        return values
    try:
        return {key: copied_value(value) for key, value in values.items()}
    except RecursionError:
        # It contains itself, or is too deep: the database's serializer refuses it, and `on_stale`
        # is given the outcome.
        return values


def copied_value(value: Any) -> Any:
    """Return a value with dicts, lists and sets of its own at every depth."""
    cls = type(value)
    if cls is dict:
        return {key: copied_value(inner) for key, inner in value.items()}
    if cls is list or cls is tuple:
        return cls(map(copied_value, value))
    return value.copy() if cls is set or cls is bytearray else value


_COPIES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("values", _copied_map),
    ("related", _copied_map),
    ("unless_changed", copied_value),
    ("hint", copied_value),
)
"""How those fields of outcomes are copied that can hold what changes."""
_FLAT = frozenset({bool, bytes, datetime, float, int, NoneType, str, UUID})
"""Types of values that hold nothing that changes."""
