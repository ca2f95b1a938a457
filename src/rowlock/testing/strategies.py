"""Hypothesis strategies: outcomes, and what may happen to a pipeline, step by step.

The one idea: what is drawn is valid, so that a property test is about the pipeline under test and
not about refusals.

    @given(outcomes(Volume, columns={Volume.status: st.sampled_from(["active", "failed"])}))
    @given(step_sequences(replicas=2))

Not here: how a drawn step is taken (`stepping`), which needs no Hypothesis.

Raises:
    ModuleNotFoundError: at import, if Hypothesis is not installed; ``pip install
        'rowlock[testing]'`` brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, DateTime, Enum, Float, Integer, Numeric, String, Uuid
from sqlalchemy.types import TypeDecorator

from rowlock import NOW_PLACEHOLDER, Apply, Delete, Outcome, Park, Reset, Retry, UtcDateTime
from rowlock.spi import LeasedTable, column_of
from rowlock.testing.databases import need
from rowlock.testing.stepping import Step, StepKind

need("hypothesis", what_for="rowlock.testing.strategies")

from hypothesis import strategies as st  # noqa: E402 - after the check that it is there

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
_FIRST, _LAST = datetime(2000, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001
_TIMES: Final = st.datetimes(_FIRST, _LAST, timezones=st.just(UTC))


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
        kinds: which of the outcomes; ``type(None)`` is None. `Delete` is drawn if it is named here.
    """
    leased = LeasedTable.of(model)
    values = values_of(model, columns=columns)
    after = st.none() | st.floats(0, DELAY_S_MAX) if leased.has_schedule else st.none()
    due_at = st.none() | _TIMES if leased.has_schedule else st.none()
    text = st.text(_CHARACTERS, max_size=TEXT_CHARS_MAX)
    choices: dict[type[Any], st.SearchStrategy[Any]] = {
        Apply: st.builds(Apply, values, after=after) | st.builds(Apply, values, due_at=due_at),
        Retry: st.builds(
            Retry, after, error=st.none() | text | text.map(RuntimeError), values=values
        ),
        Reset: st.just(Reset()),
        Delete: st.just(Delete()),
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
    type_ = column.type
    strategy = next((draw(type_) for kind, draw in _BY_TYPE if isinstance(type_, kind)), None)
    if strategy is None:
        return None
    return st.none() | strategy if column.nullable else strategy


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
    (Enum, lambda type_: st.sampled_from(list(type_.enum_class or type_.enums))),
    (String, _text),
    (Boolean, lambda _: st.booleans()),
    (Integer, lambda _: st.integers(-INTEGER_MAX, INTEGER_MAX)),
    (Float, lambda _: st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (Numeric, _decimal),
    (DateTime, lambda type_: _TIMES if type_.timezone else None),
    (Uuid, lambda type_: st.uuids() if type_.as_uuid else st.uuids().map(str)),
    (JSON, lambda _: _json()),
)


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
