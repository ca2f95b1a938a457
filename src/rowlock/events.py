"""What happened, in the past tense: frozen facts, `subscribe`, `emit`.

Actors emit; tests, logs and meters listen. The actors know no listeners, and a listener that raises
harms none of them. Events are emitted after the fact: `ItemApplied` only once its COMMIT has been
answered. A listener is called in the event loop, between two steps of an actor, and must return at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from rowlock.errors import HOST_ERRORS, ConfigurationError
from rowlock.logs import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about one pipeline."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class RowsClaimed(Event):
    """A fetch leased rows. `seconds` is how long its transaction took."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FetchEnded(Event):
    """A fetch was answered, with rows or without; `RowsClaimed` follows where rows came in time.

    `asked` is how many rows it wanted, `hinted` whether a hint began it, `model` the class of the
    rows. `database_time` is when it was made by the database's clock, in seconds since the epoch,
    and `claimed_at_s` when it was sent, on the monotonic clock; both None if no row came.
    """

    count: int
    asked: int
    hinted: bool
    seconds: float
    database_time: float | None
    model: str = ""
    claimed_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutcomesWritten(Event):
    """A transaction wrote `count` outcomes in `seconds`, those of the claims with these
    `lock_tokens`. Comes before their `ItemApplied`.
    """

    count: int
    seconds: float
    lock_tokens: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchFailed(Event):
    """A fetch raised; the fetcher rests and tries again."""

    error: str


@dataclass(frozen=True, slots=True)
class RowEvent(Event):
    """A fact about one claim of one row."""

    row_id: object
    lock_token: object


@dataclass(frozen=True, slots=True)
class ClaimEvent(RowEvent):
    """An event about one claim. `attempt` counts from 1, and `waited_s` is how long the row had
    been due when the attempt began, in seconds by the clock of the database. Both are None if
    `process` was not called, and `waited_s` also if it is not known.
    """

    attempt: int | None = field(default=None, kw_only=True)
    waited_s: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ItemRecovered(ClaimEvent):
    """`process` was called for a row whose holder before has died; side effects of its attempt may
    exist. Follows its `ItemStarted`, for listeners that do not subscribe to that.
    """


@dataclass(frozen=True, slots=True)
class ItemStarted(RowEvent):
    """A row was begun that had been due for `waited_s`, by the database's clock; None
    if that is not known. `recovered`: the holder before has died.
    """

    attempt: int
    recovered: bool = False
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class ItemApplied(ClaimEvent):
    """An outcome was committed.

    `outcome` is the class name of what was applied; ``Park`` also where a retry ended at the last
    attempt or past the deadline. `process_s` is how long `process` took, in seconds; None if it was
    not called. `columns` are the names of those that the outcome set. `error` is what went wrong,
    or why the row is parked, as `last_error` has it; None if nothing did.
    """

    outcome: str
    process_s: float | None = None
    columns: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ItemParked(RowEvent):
    """A row was set aside, for `reason`; nothing works on it until it is unparked. Comes before its
    `ItemApplied`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ItemFailed(RowEvent):
    """`process` raised, or its outcome could not be written; the row is retried. `error` is
    shortened. `process_s` is how long `process` took, in seconds; None if it was not called.
    """

    error: str
    process_s: float | None = None


@dataclass(frozen=True, slots=True)
class ItemStale(ClaimEvent):
    """A result was not applied: the lease was gone, or (``reason="changed"``) a service had changed
    what it rested on.

    ``reason="unknown"``: the answer to its COMMIT was lost, so whether it was applied is not
    known. `on_stale` is not called. `process_s` is how long `process` took, in seconds; None if
    it was not called.
    """

    reason: str
    process_s: float | None = None


@dataclass(frozen=True, slots=True)
class ItemReleased(ClaimEvent):
    """A row was released unprocessed, at once free for others."""


@dataclass(frozen=True, slots=True)
class ItemAbandoned(ClaimEvent):
    """`process` ignored its cancellation; the worker went on without it. Its result, if any, is
    never applied.
    """


@dataclass(frozen=True, slots=True)
class StrayFound(RowEvent):
    """A leased row had no place in the queue, no worker and no settlement; it is released. A bug
    lost it on its way.
    """


@dataclass(frozen=True, slots=True)
class LeaseExpired(ClaimEvent):
    """A holder's trust in its lease ended; its work was cancelled."""


@dataclass(frozen=True, slots=True)
class LeasesRenewed(Event):
    """A beat renewed `renewed` leases of the `due` that were near their end, in `seconds`.
    `margin_s` is the least trust that was left in one of them when it began, in seconds.
    """

    due: int
    renewed: int
    seconds: float = 0.0
    margin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RenewalFailed(Event):
    """A beat raised; the next one tries again while trust lasts."""

    error: str


@dataclass(frozen=True, slots=True)
class LoopReplaced(Event):
    """A loop of the pipeline died and was started again."""

    loop: str
    error: str


@dataclass(frozen=True, slots=True)
class ValueCounted:
    """A `value` was added to the distribution `name` of a pipeline. Only listeners hear of it that
    name this class: there are several for each row.
    """

    pipeline: str
    name: str
    value: float


Listener = Callable[[Any], None]

_subscriptions: dict[object, tuple[Listener, tuple[type, ...]]] = {}
_listeners_by_kind: dict[type, tuple[Listener, ...]] = {}
"""Looked up several times for each row."""


def subscribe(listener: Listener, *kinds: type[Event | ValueCounted]) -> Callable[[], None]:
    """Call `listener` with every event of this process from now on, and return the function that
    ends it.

    Args:
        listener: returns at once.
        kinds: if given, only events of these classes and of their subclasses. An event of each row
            which has no listener is not built, so that naming the kinds makes a fast pipeline
            cheaper to watch.

    Raises:
        ConfigurationError: `listener` cannot be called, would have to be awaited, or is itself a
            class of events; one of `kinds` is no class of events.
    """
    is_refused = not callable(listener) or _is_kind(listener) or not all(map(_is_kind, kinds))
    if is_refused or iscoroutinefunction(listener):
        raise ConfigurationError(
            "subscribe takes a function that is called with each event, and not awaited, and"
            f" classes of events behind it, not {(listener, *kinds)!r:.100}:"
            " subscribe(listener, events.ItemFailed)"
        )
    # Told apart by a token of its own: a listener that was subscribed twice ends once at a time.
    token = object()
    _subscriptions[token] = (listener, kinds or (Event,))
    _forget_kinds()

    def unsubscribe() -> None:
        # In one step: another thread may end its own meanwhile.
        _subscriptions.pop(token, None)
        _forget_kinds()

    return unsubscribe


def has_listeners(kind: type[Event | ValueCounted]) -> bool:
    """Lets per-row callers skip building an event when there are no listeners of that kind."""
    return bool(_listeners_of(kind))


def emit(event: Event | ValueCounted) -> None:
    """Call every listener with `event`; one that raises is logged."""
    for listener in _listeners_of(type(event)):
        try:
            listener(event)
        except HOST_ERRORS:
            name = type(event).__name__
            logger.exception("A listener raised at the event %(event)s", {"event": name})


def _is_kind(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, Event | ValueCounted)


def _listeners_of(kind: type) -> tuple[Listener, ...]:
    known = _listeners_by_kind
    found = known.get(kind)
    if found is None:
        subscriptions = tuple(_subscriptions.values())
        found = tuple(listener for listener, kinds in subscriptions if issubclass(kind, kinds))
        known[kind] = found
    return found


def _forget_kinds() -> None:
    # A new dict: a thread that has begun to fill the old one may have seen the old subscriptions.
    global _listeners_by_kind  # noqa: PLW0603
    _listeners_by_kind = {}
