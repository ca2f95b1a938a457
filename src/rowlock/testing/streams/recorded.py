"""What a flow has come to in the database: its results, states and timers as they are stored.

Reads everything with one connection, whose transaction is the caller's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import PipelineError
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.hashing import BucketRange, bucket_of
from rowlock.streams.folds import FoldModel, FoldTable
from rowlock.streams.outputs import Output, TableOutput
from rowlock.streams.program import FlowProgram

SHOWN_MAX: Final = 5  # differences of one kind that are shown


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
                key: {column: row[column] for column in folded.get(key, row)}
                for key, row in self.folds[name].items()
            }
            yield from _by_key(f"rows of the fold {name!r}", own_rows, folded)


def in_order(results: Iterable[FlowResult]) -> list[FlowResult]:
    """Sort results by their steps, their keys and what is stored."""
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


# ---------------------------------------------------------------- rows of the host


Row = Mapping[str, Any]


async def read_rows(connection: AsyncConnection, fold: FoldTable) -> dict[Any, Row]:
    """Return the rows of a fold by their primary keys; joins the caller's transaction."""
    model = fold.model
    found = await connection.execute(select(*model.columns.values()))
    rows = (dict(zip(model.columns, row, strict=True)) for row in found)
    return {_key_in(model, row): row for row in rows}


class ExpectedRows:
    """The rows that a fold should have, of the columns that it sets."""

    def __init__(self, fold: FoldTable) -> None:
        self._model = fold.model
        self._set: set[str] = set(fold.model.keys)

    def changed(self, before: Mapping[str, KeyState], after: Mapping[str, KeyState]) -> None:
        """Note which columns one step sets."""
        for key, state in after.items():
            old, new = before[key].value, state.value.values
            if old is None:
                made = self._model.make([new[name] for name in self._model.keys])
                values = {name: getattr(made, name) for name in self._model.columns}
            else:
                values = old.values
            self._set.update(self._model.changed(new, values))

    def bucket_of(self, key: str) -> int:
        """Return the bucket of the text of a row's key: that of its events."""
        return bucket_of(key if len(self._model.keys) == 1 else json.loads(key)[0])

    def rows(self, states: Mapping[str, KeyState]) -> dict[Any, Row]:
        """Return the rows of `states` by their keys."""
        rows = [state.value.values for state in states.values()]
        return {_key_in(self._model, row): self._counting(row) for row in rows}

    def _counting(self, row: Row) -> Row:
        return {
            name: value
            for name, value in row.items()
            if name in self._set and (value is not None or name not in self._model.given)
        }


def _key_in(model: FoldModel, row: Row) -> Any:
    key = [row[name] for name in model.keys]
    return key[0] if len(key) == 1 else tuple(key)


# ---------------------------------------------------------------- what is stored


class ShardAt(NamedTuple):
    """How far a shard is: its stored states are those at the start of step `version`."""

    range: BucketRange
    step: int
    version: int
    parked: str | None


async def read_shards(connection: AsyncConnection, program: FlowProgram) -> list[ShardAt]:
    """Return how far each shard is, in the order of their buckets."""
    c = program.tables.shards.c
    columns = (c.lo, c.hi, c.step, c.version, c.parked_at, c.last_error)
    own = select(*columns).where(c.flow_id == program.id).order_by(c.lo)
    return [
        ShardAt(BucketRange(lo, hi), step, version, None if parked_at is None else error or "")
        for lo, hi, step, version, parked_at, error in await connection.execute(own)
    ]


def check_at_one_step(program: FlowProgram, shards: Sequence[ShardAt]) -> None:
    """Raise PipelineError unless all shards are at one step, and have written their states."""
    for shard in shards:
        if shard.parked is not None:
            raise PipelineError(
                f"the shard {shard.range} of {program.name!r} is parked: {shard.parked}"
            )
    if len({step for one in shards for step in (one.step, one.version)}) != 1:
        told = ", ".join(f"{one.range} at {one.step}, states of {one.version}" for one in shards)
        raise PipelineError(
            f"the shards of {program.name!r} are not at one step with their states written, so"
            f" nothing can be compared: {told or 'there are none'}"
        )


async def read_recorded(
    connection: AsyncConnection, program: FlowProgram, shards: Sequence[ShardAt]
) -> FlowRecord:
    """Return what is stored of a flow: results of steps that all shards have done, and states of
    each shard as of its version.
    """
    next_step = min(shard.step for shard in shards)
    c = program.tables.state.c
    own = select(c.name, c.key, c.value, c.timer_at).where(c.flow_id == program.id)
    names = [stage.name for stage in program.stages if stage.name not in program.folds]
    values: dict[str, dict[str, Any]] = {name: {} for name in names}
    timers: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, key, value, timer_at in await connection.execute(own):
        if value is not None:
            values[name][key] = value
        if timer_at is not None:
            timers[name][key] = timer_at
    outputs = program.outputs.items()
    return FlowRecord(
        next_step,
        {
            name: await _results(connection, output, before=next_step)
            for name, output in outputs
            if not isinstance(output, TableOutput)
        },
        {
            name: await _rows(connection, output)
            for name, output in outputs
            if isinstance(output, TableOutput)
        },
        states_of(program, values),
        timers,
        {name: await read_rows(connection, fold) for name, fold in program.folds.items()},
    )


def states_of(
    program: FlowProgram, stored: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the states of each stage from their stored texts; a fold's are rows."""
    found = {}
    for stage in program.stages:
        if stage.name in program.folds:
            continue
        own = stored[stage.name]
        values = [] if stage.codec is None else stage.codec.decode_many(list(own.values()))
        found[stage.name] = dict(zip(own, values, strict=True))
    return found


def results_of(
    output: Output[Any], rows: Sequence[tuple[int, str | None, str]]
) -> list[FlowResult]:
    """Return the results of an output from step, key and text of each."""
    values = output.codec.decode_many([text for _, _, text in rows])
    return in_order(
        FlowResult(step, key, value, text)
        for (step, key, text), value in zip(rows, values, strict=True)
    )


async def _results(
    connection: AsyncConnection, output: Output[Any], *, before: int
) -> list[FlowResult]:
    c = output.tables.outputs.c
    own = select(c.step, c.key, c.payload).where(
        c.flow_id == output.flow_id, c.output == output.name, c.step < before
    )
    rows = await connection.execute(own)
    return results_of(output, [(step, key, text) for step, key, text in rows])


async def _rows(connection: AsyncConnection, output: TableOutput[Any]) -> list[dict[str, Any]]:
    rows = await connection.execute(select(output.table))
    return [dict(zip(output.table.columns.keys(), row, strict=True)) for row in rows]
