"""Asks what an explanation needs of one row, and puts the answers together: what of the claim's
condition holds, who has a related row, what flows and graphs say of themselves.

A wing is looked at only if the host has a pipeline of it, so it is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Table, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Pipeline, database_now
from rowlock.clock import JITTER
from rowlock.errors import describe
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.questions import (
    RowQuestion,
    ask_first,
    ask_part,
    ask_row,
    ask_value,
    awaiting_row,
    lives_a_lease,
    place_of,
)
from rowlock.insight.shown import duration, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import (
    Answer,
    AwaitingRow,
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
from rowlock.pipelines.lock_graph import DeclaredLock
from rowlock.rows.eligibility import RESERVED_BEYOND
from rowlock.spi import LeasedTable

# ---------------------------------------------------------------- related rows


async def lacking_row(
    connection: AsyncConnection,
    question: RowQuestion,
    locks: Iterable[DeclaredLock],
    *,
    apart: bool,
) -> LackingRow | None:
    """Return the first related row of a main row that another holder has, as far as the host says
    which rows belong to it; joins the caller's transaction.
    """
    for lock in locks:
        if lock.on is None:
            continue
        found = await ask_first(connection, _held(question, lock.leased, lock.on), apart=apart)
        if found is not None and not isinstance(found, Refused):
            return LackingRow(lock.leased.name, str(found[0]), str(found[1] or ""))
    return None


def _held(question: RowQuestion, related: LeasedTable, on: ColumnElement[bool]) -> Any:
    key, owner = related.attribute(related.key_name), related.attribute("lock_owner")
    lives = related.attribute("lock_expires_at") > database_now()
    return select(key, owner).where(on, question.is_it, lives).order_by(key).limit(1)


# ---------------------------------------------------------------- wings


CAUSE_CHARS_MAX: Final = 160
"""Most characters of what a flow waits for."""


async def flow_line(connection: AsyncConnection, pipeline: Pipeline[Any]) -> WingLine | None:
    """Return the progress of the flow of a pipeline, and what it waits for; None for other
    pipelines.

    Joins the caller's transaction.
    """
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


def graph_report(pipeline: Pipeline[Any]) -> dict[str, Any] | None:
    """Return what a replica reports of a pipeline's graph; None if it has none."""
    statistics = getattr(pipeline, "graph_statistics", None)
    if statistics is None:
        return None
    now = statistics()
    return {
        "held": sum(one.held for one in now.operators),
        "bottleneck": None if now.bottleneck is None else shown(now.bottleneck, 60),
    }


def graph_line(reports: Sequence[Mapping[str, Any]]) -> WingLine | None:
    """Return what the replicas report of a pipeline's graph, in a line."""
    told = [one["graph"] for one in reports if isinstance(one.get("graph"), dict)]
    if not told:
        return None
    held = sum(int(one.get("held") or 0) for one in told)
    slowest = dict.fromkeys(str(one["bottleneck"]) for one in told if one.get("bottleneck"))
    bottleneck = f", slowest at {', '.join(map(shown, slowest))}" if slowest else ""
    return WingLine("graph", f"{held:,}", f"values inside{bottleneck}")


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
    """The question about a row for one pipeline.

    `gates` are the names, in the order of the question's parts; `rivals` the rules of all pipelines
    by name; `failure` why `ready` gave no condition.
    """

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
    question = asked.question
    facts = _nothing_known(asked)
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
    has_stepped_back = facts.is_own_lease and facts.column("lock_token") is None
    if has_stepped_back and asked.pipeline.declared_locks:
        locks = asked.pipeline.declared_locks
        facts = replace(facts, lacking=await lacking_row(connection, question, locks, apart=apart))
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
    """Return the transactions that were prepared, left behind, and have rows of a table.

    Joins the caller's transaction; `apart` as for `ask_row`.
    """
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


def _nothing_known(asked: RowAsked) -> Facts:
    question = asked.question
    return Facts(
        question.leased.name,
        question.leased.table.name,
        str(question.key),
        asked.pipeline.name,
        asked.rivals[asked.pipeline.name],
        rivals=asked.rivals,
        lockers={locking.owner: locking.leased.name for locking in question.locking},
    )


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
        columns=question.kept_read(answers),
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
        found = await ask_first(connection, awaiting_row(asked.question, locking), apart=apart)
        if found is None or isinstance(found, Refused):
            continue
        wait = locking.precedence_timeout
        if not asked.question.leased.has_schedule:
            wait += asked.pipeline.settings.min_processing_interval
        return AwaitingRow(
            locking.leased.name, str(found[0]), locking.owner, found[1], wait.total_seconds()
        )
    return None
