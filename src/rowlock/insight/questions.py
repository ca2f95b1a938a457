"""What is asked of the database about one row, and which rows are in one state.

The one idea: the condition of a claim itself, part by part, as columns of one SELECT by the key.
Nothing is locked: a locked row is one that the next claim passes over.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Dialect,
    Integer,
    Select,
    Table,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import visitors

from rowlock import Pipeline, database_now
from rowlock.clock import JITTER
from rowlock.errors import describe
from rowlock.insight.asking import ask_first, ask_part, ask_value
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.shown import duration, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import (
    PLACES_MAX,
    Answer,
    AwaitingRow,
    Conjunct,
    Facts,
    LackingRow,
    PipelinePause,
    Refused,
    Rules,
    TableLock,
    TouchingTransaction,
    WingLine,
    is_overdue,
)
from rowlock.leases.claim import as_seen
from rowlock.spi import (
    LOCK_COLUMNS,
    PARKED,
    RESERVED_BEYOND,
    SCHEDULE_COLUMNS,
    EligibleParts,
    LeasedTable,
    LockingPipeline,
    conjuncts_of,
    is_awaiting,
    oldest_first,
    order_column,
    with_zone,
)

TEXT_CHARS_MAX: Final = 120  # most characters of a condition that are shown
VALUE_CHARS_MAX: Final = 60
CONJUNCTS_MAX: Final = 20
"""How many parts of `ready` are asked one by one; the others stand in its text alone."""
NAMED_MAX: Final = 8  # how many columns are shown beside one of them
LARGE_ROWS: Final = 10_000
"""Below so many rows an explanation does not mention that no index serves."""
HELD_MAX: Final = 10_000
"""Among how many rows, the first in the order of claims, a live lease is looked for."""
FALSE, TRUE, NULL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """One row, as one pipeline sees it; of `hidden` columns no value is shown."""

    leased: LeasedTable
    key: Any
    owner: str
    parts: EligibleParts
    locking: Sequence[LockingPipeline]
    hidden: frozenset[Column[Any]]
    beside: Sequence[Column[Any]]
    dialect: Dialect

    @property
    def kept_names(self) -> tuple[str, ...]:
        return (*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if self.leased.has_schedule else ()))

    @property
    def is_it(self) -> ColumnElement[bool]:
        """The row has this key, which may be a number that its column does not hold."""
        is_number = isinstance(self.leased.key.type, Integer) and isinstance(self.key, int)
        column = self.leased.attribute(self.leased.key_name)
        return column == (literal(self.key, BigInteger) if is_number else self.key)

    def asked(self) -> dict[str, ColumnElement[Any]]:
        """Return all columns of the SELECT, by names of ours."""
        kept: dict[str, Any] = {name: self.leased.attribute(name) for name in self.kept_names}
        parts = {
            "ready": self.parts.ready,
            "free": self.parts.free,
            "mine": self.parts.mine,
            "due": self.parts.due,
            "seen": self.parts.seen,
        }
        parts |= {f"unawaited {number}": part for number, part in enumerate(self.parts.unawaited)}
        parts |= {f"gate {number}": part for number, part in enumerate(self.parts.gates)}
        return {
            "now": database_now(),
            **{f"kept {name}": column for name, column in kept.items()},
            **{f"part {name}": case((part, TRUE), else_=FALSE) for name, part in parts.items()},
            **{
                # A host's text is true or not; only an expression can be asked whether it is null.
                f"conjunct {number}": case(
                    (part, TRUE),
                    *([(part.is_(None), NULL)] if isinstance(part, ColumnElement) else []),
                    else_=FALSE,
                )
                for number, part in enumerate(self.conjuncts)
            },
            **{f"value {column.key}": column for column in self.shown_columns},
        }

    @property
    def conjuncts(self) -> tuple[ColumnElement[bool], ...]:
        return tuple(conjuncts_of(self.parts.ready)[:CONJUNCTS_MAX])

    @property
    def shown_columns(self) -> tuple[Column[Any], ...]:
        named = [column for part in self.conjuncts for column in self.named(part)]
        return tuple(dict.fromkeys([*named, *self.beside]))

    def named(self, part: ColumnElement[bool]) -> list[Column[Any]]:
        """Return the columns of the table that a part of `ready` names."""
        found = [
            column
            for column in self.leased.table.columns
            if any(column.shares_lineage(each) for each in _columns_in(part))
        ]
        return [column for column in found if column not in self.hidden][:NAMED_MAX]

    def text(self, condition: ColumnElement[Any]) -> str:
        """Return a condition as SQL, with its values unless it names a hidden column."""
        hides = any(
            column.shares_lineage(each) for column in self.hidden for each in _columns_in(condition)
        )
        return condition_text(condition, self.dialect, with_values=not hides)

    def conjuncts_read(self, answers: Mapping[str, Any]) -> tuple[Conjunct, ...]:
        read = []
        for number, part in enumerate(self.conjuncts):
            answer = answers.get(f"conjunct {number}")
            holds = (
                answer
                if isinstance(answer, Refused)
                else {FALSE: False, TRUE: True}.get(answer if answer is not None else NULL)
            )
            values = "; ".join(
                f"{column.name} is {value_text(answers.get(f'value {column.key}'))}"
                for column in self.named(part)
            )
            read.append(Conjunct(self.text(part), holds, values))
        return tuple(read)


async def ask_row(
    connection: AsyncConnection,
    columns: Mapping[str, ColumnElement[Any]],
    where: ColumnElement[bool],
    *,
    apart: bool,
) -> dict[str, Any] | None:
    """Return the columns of the one row that meets `where`; None if there is none. With `apart`,
    each is asked under a savepoint of its own, and one that the database refuses is a `Refused`.
    """
    if not apart:
        found = (await connection.execute(_labelled(columns, where))).first()
        return None if found is None else dict(zip(columns, found, strict=True))
    there = await ask_value(connection, select(func.count()).where(where), apart=True)
    if not isinstance(there, Refused) and not there:
        return None
    return {
        name: await ask_value(connection, _labelled({name: column}, where), apart=True)
        for name, column in columns.items()
    }


def place_of(question: RowQuestion) -> Any:
    """Return the SELECT of how many rows a claim would take before this one, to `PLACES_MAX` + 1.

    The first rows in the order of claims are read, and those before it are counted of these: a
    million may be due at one time, and no database looks only at those of them with lower keys.
    """
    leased = question.leased
    it, place, key = leased.table.alias(), order_column(leased), leased.key
    # Bound by its type: the bare value of a Boolean has no order in SQLAlchemy.
    given = literal(question.key, key.type)
    is_it = it.c[key.name] == given
    its_column = it.c[leased.column(place.key).name]
    its_place = select(its_column).where(is_it).scalar_subquery().correlate(None)
    # First: of two bounds of one column SQLite uses this one, and not that of what is due.
    bound = (place <= its_place,) if leased.has_schedule else ()
    first = (
        select(place.label("place"), key.label("key"))
        .where(*bound, question.parts.whole)
        .order_by(*oldest_first(leased))
        .limit(PLACES_MAX + 1)
        .subquery()
    ).c
    before = or_(
        first.place < its_place,
        and_(first.place == its_place, first.key < given),
        and_(first.place.is_(None), its_place.is_not(None)),
        and_(first.place.is_(None), its_place.is_(None), first.key < given),
    )
    return select(func.count()).where(before)


def lives_a_lease(question: RowQuestion) -> Any:
    """Return the SELECT of whether a live lease of the pipeline is among its first rows."""
    state = StateRows(question.leased, question.parts, question.owner, ListedState.LEASED)
    lives = case((state.condition(), 1), else_=0).label("lives")
    first = select(lives).where(state.among()).order_by(*state.order()).limit(HELD_MAX).subquery()
    return select(literal(1)).where(first.c.lives == 1).limit(1)


def condition_text(
    condition: ColumnElement[Any], dialect: Dialect, *, with_values: bool = True
) -> str:
    for literal_binds in (True, False) if with_values else (False,):
        try:
            compiled = condition.compile(
                dialect=dialect,
                compile_kwargs={"include_table": False, "literal_binds": literal_binds},
            )
            return shown(" ".join(str(compiled).split()), TEXT_CHARS_MAX)
        # Values of some types have no text in SQL, and types of the host's raise what they like.
        except Exception:  # noqa: BLE001, S112
            continue
    return "a condition that has no text"


def value_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Refused):
        return "?"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int | float):
        return shown(str(value).lower() if isinstance(value, bool) else value, VALUE_CHARS_MAX)
    return f"'{shown(value, VALUE_CHARS_MAX)}'"


def _columns_in(condition: ColumnElement[Any]) -> list[Column[Any]]:
    return [each for each in visitors.iterate(condition) if isinstance(each, Column)]


def _labelled(columns: Mapping[str, ColumnElement[Any]], where: ColumnElement[bool]) -> Any:
    labelled = [
        type_coerce(column, column.type).label(f"c{number}")
        for number, column in enumerate(columns.values())
    ]
    return select(*labelled).where(where)


# ---------------------------------------------------------------- rows of one state


class ListedState(StrEnum):
    """What rows of a pipeline are listed by."""

    DUE = "due"
    RESTING = "resting"
    LEASED = "leased"
    ENDED = "ended"
    FAILING = "failing"
    PARKED = "parked"


HEAD_STATES: Final = (ListedState.LEASED, ListedState.ENDED, ListedState.FAILING)
"""What no index finds, so that it is sought among the first rows that a pipeline wants."""


@dataclass(frozen=True, slots=True)
class StateRows:
    """The rows of one state, in their order."""

    leased: LeasedTable
    parts: EligibleParts
    owner: str
    state: ListedState

    @property
    def place(self) -> InstrumentedAttribute[Any] | None:
        """The time by which the rows are ordered; None if their keys alone order them."""
        if self.state is not ListedState.PARKED:
            return order_column(self.leased)
        return self.leased.attribute(PARKED) if has_parked_index(self.leased) else None

    @property
    def is_sought(self) -> bool:
        """Whether no index finds such rows, so that they are sought among others."""
        return self.state in HEAD_STATES or self.place is None

    def order(self) -> tuple[ColumnElement[Any], ...]:
        key = self.leased.attribute(self.leased.key_name).asc()
        return (key,) if self.place is None else (self.first_placed(self.place), key)

    def first_placed(self, place: Any) -> ColumnElement[Any]:
        first: ColumnElement[Any] = place.asc()
        return first if self.leased.has_schedule else first.nulls_first()

    def among(self) -> ColumnElement[bool]:
        """Return the condition of the rows among which those of the state are sought."""
        if self.state is ListedState.PARKED:
            return true()
        # The index of claims has no parked rows; without this it would not serve.
        return and_(self.parts.ready, self._is_placed())

    def condition(self) -> ColumnElement[bool]:
        leased, parts = self.leased, self.parts
        expires_at, is_scheduled = leased.attribute("lock_expires_at"), leased.has_schedule
        match self.state:
            case ListedState.DUE:
                return and_(parts.ready, parts.free, parts.due)
            case ListedState.RESTING:
                later = order_column(leased) > database_now() if is_scheduled else not_(parts.due)
                return and_(parts.ready, self._is_placed(), later, parts.free)
            case ListedState.LEASED:
                return and_(
                    expires_at > database_now(), leased.attribute("lock_owner") == self.owner
                )
            case ListedState.ENDED:
                return expires_at <= database_now()
            case ListedState.FAILING:
                return leased.attribute("attempts") > 0 if is_scheduled else false()
            case ListedState.PARKED:
                return leased.attribute(PARKED).is_not(None) if is_scheduled else false()

    def _is_placed(self) -> ColumnElement[bool]:
        return self.leased.attribute(PARKED).is_(None) if self.leased.has_schedule else true()


def has_parked_index(leased: LeasedTable) -> bool:
    """Whether an index of the model finds parked rows without reading the others."""
    column = leased.column(PARKED) if leased.has_schedule else None
    return any(index.columns and index.columns[0] is column for index in leased.table.indexes)


# ---------------------------------------------------------------- related rows


async def lacking_row(
    connection: AsyncConnection, asked: RowAsked, *, apart: bool
) -> LackingRow | None:
    """Return the first related row that another holder has, if the host says which belong to it."""
    for lock in asked.pipeline.declared_locks:
        if lock.on is None:
            continue
        related = lock.leased
        key, owner = related.attribute(related.key_name), related.attribute("lock_owner")
        lives = related.attribute("lock_expires_at") > database_now()
        held = select(key, owner).where(lock.on, asked.question.is_it, lives)
        found = await ask_first(connection, held.order_by(key).limit(1), apart=apart)
        if found is not None and not isinstance(found, Refused):
            return LackingRow(related.name, str(found[0]), str(found[1] or ""))
    return None


# ---------------------------------------------------------------- wings


CAUSE_CHARS_MAX: Final = 160  # most characters of what a flow waits for


async def flow_line(connection: AsyncConnection, pipeline: Pipeline[Any]) -> WingLine | None:
    """Return the progress of a pipeline's flow, and what it waits for; None for other pipelines."""
    program = _program_of(pipeline)
    if program is None:
        return None
    from rowlock.streams.status import status_of  # noqa: PLC0415 - a wing

    found = await ask_part(connection, partial(status_of, connection, program), apart=True)
    if isinstance(found, Refused):
        return WingLine("flow", program.name, f"? {shown(found.why, CAUSE_CHARS_MAX)}")
    lag = f"{found.lag_rows:,} rows behind"
    if found.lag_rows and found.lag_s >= 1:
        lag += f" for {duration(found.lag_s)}"
    told = f"{found.state}, step {found.frontier:,} of {found.next_step:,}, {lag}"
    if found.lag_rows:
        told += f": {shown(found.text, CAUSE_CHARS_MAX)}"
    return WingLine("flow", found.flow, told)


async def flow_of_row(
    connection: AsyncConnection, pipeline: Pipeline[Any], question: RowQuestion
) -> WingLine | None:
    """Return the same for a row; None if it is of another flow."""
    program, columns = _program_of(pipeline), question.leased.table.c
    if program is None:
        return None
    is_of_it = columns.get("flow_id", question.leased.key) == program.id
    mine = select(func.count()).where(question.is_it, is_of_it)
    if await ask_value(connection, mine, apart=True) != 1:
        return None
    return await flow_line(connection, pipeline)


def coordinates(pipeline: Pipeline[Any]) -> bool:
    """Whether a pipeline works on the row of a flow, and not on its shards."""
    return _is_of(pipeline, "rowlock.streams.coordinator", "CoordinatorPipeline")


def _program_of(pipeline: Pipeline[Any]) -> Any:
    is_of_flow = _is_of(pipeline, "rowlock.streams.shards.pipeline", "FlowPipeline")
    if not (is_of_flow or coordinates(pipeline)):
        return None
    return getattr(pipeline, "program")  # noqa: B009 - its class is not imported


def _is_of(pipeline: Pipeline[Any], module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(pipeline, getattr(found, name))


# ---------------------------------------------------------------- facts of one row


WORK_COLUMNS = ("status", "worker", "progress", "losses")
"""Columns of a dispatched row that the line about its work shows."""
PAUSE_NAMES = ("paused_by", "paused_at", "reason")


def rules_of(pipeline: Pipeline[Any]) -> Rules:
    settings = pipeline.settings
    return Rules(
        settings.min_processing_interval,
        settings.retry_delay,
        RESERVED_BEYOND + settings.retry_delay * (1 + JITTER),
        max(settings.fetch_delays) * (1 + JITTER),
        settings.process_timeout,
        settings.max_attempts,
    )


@dataclass(frozen=True, slots=True)
class RowAsked:
    """The question about a row for one pipeline; `failure` is why `ready` gave no condition."""

    pipeline: Pipeline[Any]
    question: RowQuestion
    gates: tuple[str, ...]
    rivals: Mapping[str, Rules]
    tables: InsightTables | None = None
    failure: Exception | None = None

    @property
    def is_dispatched(self) -> bool:
        return set(WORK_COLUMNS) <= set(self.question.leased.columns_by_name)


async def seen_by(session: AsyncSession, asked: RowAsked) -> RowAsked:
    """Return the same question where claims leave out what `session` hides, as they do."""
    question = asked.question
    parts = replace(question.parts, seen=await as_seen(session, question.leased, true()))
    return replace(asked, question=replace(question, parts=parts))


async def facts_of(connection: AsyncConnection, asked: RowAsked, *, apart: bool) -> Facts:
    """Ask for one row, in the transaction of the connection; `apart` as for `ask_row`."""
    question, pipeline = asked.question, asked.pipeline
    facts = Facts(
        question.leased.name,
        question.leased.table.name,
        str(question.key),
        pipeline.name,
        asked.rivals[pipeline.name],
        rivals=asked.rivals,
        lockers={locking.owner: locking.leased.name for locking in question.locking},
    )
    if apart:
        lock = await lock_of(connection, asked)
        if lock is not None:
            return replace(facts, table_lock=lock)
    columns = question.asked()
    if asked.is_dispatched:
        columns |= {f"work {name}": question.leased.columns_by_name[name] for name in WORK_COLUMNS}
    answers = await ask_row(connection, columns, question.is_it, apart=apart)
    if answers is None:
        at = await ask_value(connection, select(database_now()), apart=apart)
        return replace(facts, is_there=False, at=None if isinstance(at, Refused) else at)
    facts = _with_row(facts, asked, answers)
    facts = replace(facts, wing=await flow_of_row(connection, asked.pipeline, question))
    if False in facts.unawaited.values():
        facts = replace(facts, awaiting=await _awaiting(connection, asked, facts, apart=apart))
    if False in facts.gates.values() and asked.tables is not None:
        pause = await ask_pause(connection, asked.tables, asked.pipeline.name, apart=apart)
        facts = replace(facts, pause=None if isinstance(pause, Refused) else pause)
    if facts.is_own_lease and facts.column("lock_token") is None:
        # It has stepped back.
        facts = replace(facts, lacking=await lacking_row(connection, asked, apart=apart))
    if not facts.is_claimable:
        return facts
    facts = replace(facts, place=await ask_value(connection, place_of(question), apart=apart))
    if is_overdue(facts):
        lives = await ask_value(connection, lives_a_lease(question), apart=apart)
        facts = replace(facts, is_run=lives if isinstance(lives, Refused) else bool(lives))
        dialect = INSIGHT.of(connection)
        touching = partial(dialect.open_transaction, connection, question.leased, question.key)
        touched = await ask_part(connection, touching, apart=apart)
        facts = replace(facts, touched=touched)
    return facts


async def large_rows(connection: AsyncConnection, table: Table, *, apart: bool) -> int | None:
    """Return `LARGE_ROWS` if a table has more."""
    first = select(literal(1)).select_from(table).limit(LARGE_ROWS + 1).subquery()
    counted = select(func.count()).select_from(first)
    count = await ask_value(connection, counted, apart=apart)
    return None if isinstance(count, Refused) or count <= LARGE_ROWS else LARGE_ROWS


async def lock_of(connection: AsyncConnection, asked: RowAsked) -> TableLock | None:
    """Return who locks a table that claims read; joins the caller's transaction."""
    question, controls = asked.question, None if asked.tables is None else asked.tables.controls
    tables = [question.leased.table, *(one.leased.table for one in question.locking)]
    if controls is not None:
        tables.append(controls)
    ask = partial(INSIGHT.of(connection).table_lock, connection, tables)
    found = await ask_part(connection, ask, apart=True)
    return found if isinstance(found, TableLock) else None


async def left_in(
    connection: AsyncConnection, table: Table, *, apart: bool
) -> tuple[TouchingTransaction, ...]:
    """Return the transactions that were prepared, left behind, and have rows of a table."""
    ask = partial(INSIGHT.of(connection).left_prepared, connection, table)
    found = await ask_part(connection, ask, apart=apart)
    return () if isinstance(found, Refused) else found


async def ask_pause(
    connection: AsyncConnection, tables: InsightTables, pipeline: str, *, apart: bool
) -> PipelinePause | Refused | None:
    """Return why a pipeline is paused, if it is; joins the caller's transaction."""
    statement = pause_query(tables, pipeline)
    if statement is None:
        return None
    found = await ask_first(connection, statement, apart=apart)
    return found if found is None or isinstance(found, Refused) else pause_read(found)


def pause_query(tables: InsightTables | None, pipeline: str) -> Select[Any] | None:
    """Return the SELECT of `PAUSE_NAMES`; None without such a table."""
    if tables is None or tables.controls is None:
        return None
    paused = tables.controls.c
    return select(*(paused[name] for name in PAUSE_NAMES)).where(
        paused.pipeline == pipeline, tables.is_paused(pipeline)
    )


def pause_read(found: Sequence[Any]) -> PipelinePause | None:
    by, at, reason = found
    return None if by is None else PipelinePause(str(by), at, str(reason))


def _with_row(facts: Facts, asked: RowAsked, answers: Mapping[str, Any]) -> Facts:
    question = asked.question

    def part(name: str) -> Answer:
        answer = answers.get(f"part {name}")
        return answer if isinstance(answer, Refused) or answer is None else bool(answer)

    at = answers.get("now")
    owners = [locking.owner for locking in question.locking]
    return replace(
        facts,
        at=None if isinstance(at, Refused) else at,
        columns={
            name: with_zone(answers.get(f"kept {name}"), question.leased.column(name))
            for name in question.kept_names
        },
        ready=part("ready") if asked.failure is None else Refused(describe(asked.failure)),
        ready_text=question.text(question.parts.ready) if asked.failure is None else "",
        conjuncts=question.conjuncts_read(answers) if asked.failure is None else (),
        free=part("free"),
        mine=part("mine"),
        due=part("due"),
        seen=part("seen"),
        seen_text="" if part("seen") else question.text(question.parts.seen),
        unawaited={name: part(f"unawaited {number}") for number, name in enumerate(owners)},
        gates={name: part(f"gate {number}") for number, name in enumerate(asked.gates)},
        work={
            name: None if isinstance(answers[f"work {name}"], Refused) else answers[f"work {name}"]
            for name in WORK_COLUMNS
            if asked.is_dispatched
        },
    )


async def _awaiting(
    connection: AsyncConnection, asked: RowAsked, facts: Facts, *, apart: bool
) -> AwaitingRow | None:
    for locking, is_unawaited in zip(asked.question.locking, facts.unawaited.values(), strict=True):
        if is_unawaited is not False:
            continue
        main = locking.leased
        key, last = main.attribute(main.key_name), main.attribute("last_processed_at")
        awaiting = select(key, last).where(is_awaiting(locking), asked.question.is_it)
        found = await ask_first(connection, awaiting.order_by(key).limit(1), apart=apart)
        if found is None or isinstance(found, Refused):
            continue
        wait = locking.precedence_timeout
        if not asked.question.leased.has_schedule:
            wait += asked.pipeline.settings.min_processing_interval
        return AwaitingRow(
            locking.leased.name, str(found[0]), locking.owner, found[1], wait.total_seconds()
        )
    return None
