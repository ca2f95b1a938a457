"""What a flow came to, as a value: its results by step, its states and its timers; and in what two
such values differ.

Not here: where they come from (``recorded.py``, ``one_loop.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

__all__ = ["FlowRecord", "FlowResult"]

SHOWN_MAX: Final = 5
"""Differences of one kind that are shown."""


class FlowResult(NamedTuple):
    """One result of a step.

    Attributes:
        step: its number.
        key: the text of its key; None if it has none.
        value: what was emitted.
        stored: its text.
    """

    step: int
    key: str | None
    value: Any
    stored: str


@dataclass(frozen=True)
class FlowRecord:
    """What a flow came to.

    Attributes:
        next_step: results and states are those behind all steps below this one.
        results: of each output, by its name: by step, then by key. The order of results of one key
            in one step is no part of it, since two shards may emit for one key.
        rows: of each output into a table of the host: the values of rows by the keys of their
            columns.
        states: of each stage, by its name: the state of each key that has one.
        timers: of each stage, by its name: when the timer of each key is due that has one.
        folds: of each fold, by the name of its handler: rows of the host by their primary keys,
            each as values by the names of attributes. A key of several columns is a tuple.
        messages: to each further stage, by the name of its exchange: by step, then by key, and
            those of one key as they came. Only a reference has them.
        digests: of each stage, by its name: step by step, of all that came of its shards, in the
            order in which it was handed out. Replays compare them. Only a reference has them, and
            they depend on the number of shards, so they are no part of `differences`.
    """

    next_step: int
    results: Mapping[str, Sequence[FlowResult]]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    states: Mapping[str, Mapping[str, Any]]
    timers: Mapping[str, Mapping[str, datetime]]
    folds: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)
    messages: Mapping[str, Sequence[FlowResult]] = field(default_factory=dict)
    digests: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def values(self, output: str) -> list[Any]:
        """Return the values of the results of an output, in the order of `results`."""
        return [result.value for result in self.results[output]]

    def differences(self, expected: FlowRecord) -> list[str]:
        """Return in what this differs from `expected`, in words; nothing if it does not.

        Of rows of the host, those columns are compared that `expected` has. A reference has of a
        fold the columns that its handler sets.
        """
        return list(self._differences(expected))

    def _differences(self, expected: FlowRecord) -> Iterator[str]:
        if self.next_step != expected.next_step:
            yield f"there are {self.next_step} steps, not {expected.next_step}"
        for name in expected.messages.keys() & self.messages.keys():
            sent, wanted = _plain(self.messages[name]), _plain(expected.messages[name])
            yield from _in_words(f"the exchange {name!r}", sent, wanted)
            if sent != wanted and sorted(sent) == sorted(wanted):
                yield f"the exchange {name!r} has messages in another order"
        for name, results in expected.results.items():
            own, theirs = _plain(self.results[name]), _plain(results)
            yield from _in_words(f"the output {name!r}", own, theirs)
        for name, rows in expected.rows.items():
            more, less = _unmatched(self.rows[name], rows)
            yield from _in_words(f"the rows of {name!r}", more, less)
        for name, states in expected.states.items():
            yield from _by_key(f"states of {name!r}", self.states[name], states)
        for name, timers in expected.timers.items():
            yield from _by_key(f"timers of {name!r}", self.timers[name], timers)
        for name, folded in expected.folds.items():
            own_rows = {
                key: _columns(row, folded.get(key)) for key, row in self.folds[name].items()
            }
            yield from _by_key(f"rows of the fold {name!r}", own_rows, folded)


def in_order(results: Iterable[FlowResult]) -> list[FlowResult]:
    return sorted(results, key=lambda one: (one.step, one.key or "", one.stored))


def _plain(results: Iterable[FlowResult]) -> list[tuple[int, str, str]]:
    return [(one.step, one.key or "", one.stored) for one in results]


def _in_words(what: str, own: Sequence[Any], expected: Sequence[Any]) -> Iterator[str]:
    more, less = Counter(own), Counter(expected)
    if more != less:
        yield f"{what} has {_shown(more - less)} too many, and lacks {_shown(less - more)}"


def _by_key(what: str, own: Mapping[Any, Any], expected: Mapping[Any, Any]) -> Iterator[str]:
    keys = [key for key in {**own, **expected} if own.get(key) != expected.get(key)]
    for key in sorted(keys, key=str)[:SHOWN_MAX]:
        yield f"{what}: {key!r} has {own.get(key)!r}, not {expected.get(key)!r}"
    if len(keys) > SHOWN_MAX:
        yield f"{what}: {len(keys) - SHOWN_MAX} more keys"


def _columns(row: Mapping[str, Any], expected: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return row if expected is None else {name: row[name] for name in expected}


def _shown(found: Counter[Any]) -> str:
    rows = sorted(map(repr, found.elements()))
    more = f" and {len(rows) - SHOWN_MAX} more" if len(rows) > SHOWN_MAX else ""
    return f"[{', '.join(rows[:SHOWN_MAX])}{more}]"


def _unmatched(
    rows: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> tuple[list[Any], list[Any]]:
    """Return rows that are not expected, and expected ones that are missing, by their columns."""
    left, missing = list(rows), []
    by_columns: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for row in expected:
        by_columns.setdefault(frozenset(row), []).append(row)
    for columns in sorted(by_columns, key=len, reverse=True):
        wanted = Counter(_frozen(row, columns) for row in by_columns[columns])
        others = []
        for row in left:
            own = _frozen(row, columns)
            if wanted[own]:
                wanted[own] -= 1
            else:
                others.append(row)
        left = others
        missing += list(wanted.elements())
    return [_frozen(row, frozenset(row)) for row in left], missing


def _frozen(row: Mapping[str, Any], columns: frozenset[str]) -> tuple[tuple[str, str], ...]:
    # Values may be lists or mappings.
    return tuple((name, repr(row[name])) for name in sorted(columns))
