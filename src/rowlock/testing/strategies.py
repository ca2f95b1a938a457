"""Hypothesis strategies: outcomes, lease states of a row, settings, and what may happen to a
pipeline, step by step.

The one idea: what is drawn is valid, so that a property test is about the pipeline under test and
not about refusals.

    @given(outcomes(Volume, columns={Volume.status: st.sampled_from(["active", "failed"])}))
    @given(lease_states(Volume, owner="VolumePipeline"))
    @given(pipeline_settings(workers_num=2))
    @given(step_sequences(replicas=2))

Not here: how a drawn step is taken (`steps`), which needs no Hypothesis.

Raises:
    ModuleNotFoundError: at import, if Hypothesis is not installed; ``pip install
        'rowlock[testing]'`` brings it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, DateTime, Enum, Float, Integer, Numeric, String, Uuid
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock.backoff import JITTER
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, Retry
from rowlock.pipelines.settings import SettingsKeywords
from rowlock.rows.database_time import UtcDateTime
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import NOW_PLACEHOLDER, column_of
from rowlock.testing.databases.clock import DEFAULT_START
from rowlock.testing.extras import need
from rowlock.testing.steps import Step, StepKind

need("hypothesis", what_for="rowlock.testing.strategies")

from hypothesis import strategies as st  # noqa: E402 - after the check that it is there

__all__ = [
    "LeaseState",
    "lease_states",
    "outcomes",
    "pipeline_settings",
    "step_sequences",
    "values_of",
]

TEXT_CHARS_MAX: Final = 40
"""Longest text that is drawn, where the column takes as much. **Unit** characters."""
INTEGER_MAX: Final = 2**31 - 1
DIGITS_MAX: Final = 9
"""Digits of a decimal, where the column does not say."""
DELAY_S_MAX: Final = 600.0
"""Longest `after` that is drawn. **Unit** seconds."""
STEPS_MAX: Final = 40
"""Most steps of a sequence."""

# Every database stores these, and returns them as they were: no surrogates, and no null characters
# for PostgreSQL.
_CHARACTERS: Final = st.characters(codec="utf-8", exclude_characters="\x00")
_TIMES: Final = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


# ---------------------------------------------------------------- outcomes


def values_of(
    model: type[Any], *, columns: Mapping[Any, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw update maps for a model: any of the columns that an outcome may write, each with a value
    that it takes.

    Left out are the key, foreign keys, columns that rowlock keeps, and types that are not known
    here.

    Args:
        model: the host's mapped class.
        columns: what to draw for a column instead, by attribute or name; for one of a type that is
            not known here, too.
    """
    leased = LeasedTable.of(model)
    given = {column_of(leased, key): strategy for key, strategy in (columns or {}).items()}
    names = {
        column: leased.mapper.get_property_by_column(column).key for column in leased.table.columns
    }
    drawn = {}
    for column, name in names.items():
        strategy = given[column] if column in given else _values_of(leased, column)
        if strategy is not None:
            drawn[name] = strategy
    return st.fixed_dictionaries({}, optional=drawn)


def outcomes(
    model: type[Any],
    *,
    columns: Mapping[Any, st.SearchStrategy[Any]] | None = None,
    kinds: Collection[type[Any]] = (Apply, Retry, Reset, Park, type(None)),
) -> st.SearchStrategy[Outcome | None]:
    """Draw what `process` may return for a row of `model`.

    Args:
        model: the host's mapped class; `Park` and ``after`` are drawn if it has `ScheduleColumns`.
        columns: as for `values_of`.
        kinds: which of the outcomes; ``type(None)`` is None.
    """
    leased = LeasedTable.of(model)
    values = values_of(model, columns=columns)
    after = st.none() | st.floats(0, DELAY_S_MAX) if leased.has_schedule else st.none()
    text = st.text(_CHARACTERS, max_size=TEXT_CHARS_MAX)
    choices: dict[type[Any], st.SearchStrategy[Any]] = {
        Apply: st.builds(Apply, values, after=after),
        Retry: st.builds(
            Retry, after, error=st.none() | text | text.map(RuntimeError), values=values
        ),
        Reset: st.just(Reset()),
        type(None): st.none(),
    }
    if leased.has_schedule:
        choices[Park] = st.builds(Park, text)
    return st.one_of(*(strategy for kind, strategy in choices.items() if kind in kinds))


def _values_of(leased: LeasedTable, column: Column[Any]) -> st.SearchStrategy[Any] | None:
    names = leased.lease_columns
    if (
        column.primary_key
        or column.foreign_keys
        or column.computed is not None
        or column.key in names
    ):
        return None
    strategy = _of_type(column.type)
    if strategy is None:
        return None
    return st.none() | strategy if column.nullable else strategy


def _of_type(type_: TypeEngine[Any]) -> st.SearchStrategy[Any] | None:
    return next((draw(type_) for kind, draw in _BY_TYPE if isinstance(type_, kind)), None)


def _enum(
    type_: Any,
) -> st.SearchStrategy[Any]:
    return st.sampled_from(type_.enums if type_.enum_class is None else list(type_.enum_class))


def _text(type_: Any) -> st.SearchStrategy[Any]:
    return st.text(_CHARACTERS, max_size=min(type_.length or TEXT_CHARS_MAX, TEXT_CHARS_MAX))


def _decimal(type_: Any) -> st.SearchStrategy[Any]:
    places = type_.scale or 0
    most = 10 ** ((type_.precision or DIGITS_MAX) - places) - 1
    return st.decimals(-most, most, places=places, allow_nan=False)


def _json() -> st.SearchStrategy[Any]:
    # Not null at the top: it may mean SQL's NULL or JSON's, as the column says.
    texts = st.text(_CHARACTERS, max_size=TEXT_CHARS_MAX)
    leaves = st.none() | st.booleans() | st.integers(-INTEGER_MAX, INTEGER_MAX) | texts
    return st.dictionaries(texts, leaves | st.lists(leaves, max_size=3), max_size=3)


# The first that fits counts: an Enum is a String too, and a Float a Numeric.
_BY_TYPE: Final[tuple[tuple[type[Any], Callable[[Any], st.SearchStrategy[Any] | None]], ...]] = (
    (UtcDateTime, lambda _: _TIMES | st.just(NOW_PLACEHOLDER)),
    (TypeDecorator, lambda _: None),  # the host's own: only the host knows what it takes
    (Enum, _enum),
    (String, _text),
    (Boolean, lambda _: st.booleans()),
    (Integer, lambda _: st.integers(-INTEGER_MAX, INTEGER_MAX)),
    (Float, lambda _: st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (Numeric, _decimal),
    (DateTime, lambda type_: _TIMES if type_.timezone else None),
    (Uuid, lambda type_: st.uuids() if type_.as_uuid else st.uuids().map(str)),
    (JSON, lambda _: _json()),
)


# ---------------------------------------------------------------- lease states


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A state in which a claim may find a row.

    Attributes:
        name: ``free``, ``held``, ``expired``, ``reset`` or ``parked``.
        is_due: whether its time has come.
        is_claimable: whether the owner that it was drawn for may claim it, if it is ready and no
            main row awaits it.
        values: what the lock and schedule columns hold, for the constructor of the row.
    """

    name: str
    is_due: bool
    is_claimable: bool
    values: Mapping[str, Any]


def lease_states(
    model: type[Any],
    *,
    owner: str,
    now: datetime = DEFAULT_START,
    interval: timedelta = timedelta(seconds=15),
) -> st.SearchStrategy[LeaseState]:
    """Draw lease states of a row: free, held, expired, reset or parked; due or not; by this owner
    or another pipeline.

    Args:
        model: the host's mapped class.
        owner: the name of the pipeline that is to claim the row.
        now: the database's time, such as ``database.clock.now``; at that moment the states are what
            they are called.
        interval: the pipeline's `min_processing_interval`, by which rows without `ScheduleColumns`
            are due.
    """
    leased = LeasedTable.of(model)
    names = ["free", "held", "expired", "reset", *(["parked"] if leased.has_schedule else [])]
    return st.builds(
        _lease_state,
        st.sampled_from(names),
        is_due=st.booleans(),
        is_mine=st.booleans(),
        away=st.integers(2, 3600).map(lambda seconds: timedelta(seconds=seconds)),
        token=st.uuids(version=4),
        about=st.just((leased, owner, now, interval)),
    )


def _lease_state(
    name: str,
    *,
    is_due: bool,
    is_mine: bool,
    away: timedelta,
    token: uuid.UUID,
    about: tuple[LeasedTable, str, datetime, timedelta],
) -> LeaseState:
    leased, owner, now, interval = about
    values: dict[str, Any] = {}
    if name in {"held", "expired", "reset"}:
        values["lock_owner"] = owner if is_mine else f"Not{owner}"
    if name in {"held", "expired"}:
        values["lock_token"] = leased.as_token(token)
        values["lock_expires_at"] = now + away if name == "held" else now - away
    if leased.has_schedule:
        values["due_at"] = now - away if is_due else now + away
        values["parked_at"] = now - away if name == "parked" else None
    else:
        # A row that was reset comes back sooner than others, so it is due for certain only after
        # the interval.
        values["last_processed_at"] = (
            now - interval - away if is_due else now - min(interval, away) / 2
        )
    if name == "reset":
        # Reserved for its owner a moment ago, or for so long that nobody is kept away any more.
        is_kept = away < _KEPT_NO_MORE and (leased.has_schedule or not is_due)
        values["last_processed_at"] = now if is_kept else now - interval - _KEPT_NO_MORE
        is_due = is_due if leased.has_schedule else not is_kept
        is_open = is_mine or not is_kept
    else:
        is_open = name in {"free", "expired"}
    return LeaseState(name, is_due, is_open and is_due, values)


_KEPT_NO_MORE: Final = timedelta(minutes=30)


# ---------------------------------------------------------------- settings

_DEPEND_ON_ONE_ANOTHER: Final = (
    {
        "lock_timeout",
        "heartbeat_trigger",
        "lease_margin",
        "heartbeat_interval",
        "renew_timeout",
        "orphaned_after",
    },
    {"queue_lower_limit_factor", "queue_upper_limit_factor"},
    {"retry_delay", "retry_delay_max"},
)


@st.composite
def pipeline_settings(draw: st.DrawFn, /, **fixed: Any) -> SettingsKeywords:
    """Draw settings that keep the timing budget, as keywords for a pipeline.

    Args:
        draw: given by Hypothesis.
        fixed: settings that are to be just so. Those that depend on one another are drawn together
            or not at all: beside a `lock_timeout` that is fixed, say, the others about leases are
            left out, so that they have their defaults.
    """
    lock_timeout_s = draw(st.floats(0.5, 3600))
    trigger_s = lock_timeout_s * draw(st.floats(0.05, 0.95))
    # Margin, two late beats and one renewal share what is left of a lease when its renewal is
    # triggered.
    share = st.floats(0.02, 0.3)
    margin_s, beats_s, renewal_s = (trigger_s * draw(share) for _ in range(3))
    lower, upper = sorted(draw(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10))))
    retry_s, retry_most_s = sorted(draw(st.tuples(st.floats(0.01, 60), st.floats(0.01, 3600))))
    drawn: dict[str, Any] = {
        "workers_num": draw(st.integers(1, 8)),
        "queue_lower_limit_factor": lower,
        "queue_upper_limit_factor": upper,
        "min_processing_interval": draw(st.floats(0, 60)),
        "lock_timeout": lock_timeout_s,
        "heartbeat_trigger": trigger_s,
        "fetch_delays": tuple(draw(st.lists(st.floats(0.01, 30), min_size=1, max_size=4))),
        "lease_margin": margin_s,
        "heartbeat_interval": beats_s / (2 * (1 + JITTER)),
        "renew_timeout": renewal_s,
        "retry_delay": retry_s,
        "retry_delay_max": retry_most_s,
        "max_attempts": draw(st.integers(1, 5)),
        "orphaned_after": lock_timeout_s * draw(st.floats(1.5, 20)),
    }
    for together in _DEPEND_ON_ONE_ANOTHER:
        if not together.isdisjoint(fixed):
            drawn = {name: value for name, value in drawn.items() if name not in together}
    # The same keys as the typed dictionary has; mypy cannot follow them through a variable.
    return {**drawn, **fixed}  # type: ignore[typeddict-item, return-value, unused-ignore]


# ---------------------------------------------------------------- steps


def step_sequences(
    *,
    replicas: int = 2,
    kinds: Collection[StepKind] = tuple(StepKind),
    seconds_max: float = 60.0,
    max_size: int = STEPS_MAX,
) -> st.SearchStrategy[list[Step]]:
    """Draw what happens, in order: fetches, work, beats and sweeps of each replica, the time that
    passes, writes of services.

    Args:
        replicas: how many there are.
        kinds: which steps there may be.
        seconds_max: longest time that passes at once. **Unit** seconds.
        max_size: most steps.
    """
    step = st.builds(
        Step,
        st.sampled_from(sorted(kinds)),
        replica=st.integers(0, replicas - 1),
        seconds=st.floats(0.0, seconds_max).map(lambda seconds: round(seconds, 3)),
        number=st.integers(0, 7),
    )
    return st.lists(step, max_size=min(max_size, STEPS_MAX))
