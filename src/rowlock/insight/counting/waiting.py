"""Asks what waits for one pipeline, and what stands in its way: in one statement, or part by part
if that was refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import describe
from rowlock.insight.counting.counts import (
    KEYS_MAX,
    Counts,
    counted_together,
    counts_apart,
    counts_read,
    first_key,
)
from rowlock.insight.counting.wings import coordinates, flow_line
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.facts import (
    PAUSE_NAMES,
    RowAsked,
    ask_pause,
    left_in,
    lock_of,
    pause_query,
    pause_read,
)
from rowlock.insight.listing.row_page import ListedState
from rowlock.insight.listing.states import StateQuestion, read_keys
from rowlock.insight.questions import ask_part
from rowlock.insight.verdicts import (
    OVERDUE_WINDOWS,
    PipelinePause,
    Refused,
    Rules,
    TableLock,
    TouchingTransaction,
)
from rowlock.insight.wing_line import WingLine


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one pipeline.

    Attributes:
        model: of its rows.
        rules: of the pipeline.
        counts: what waits.
        pause: why it is paused; None if it is not, or if that could not be asked.
        lock: who keeps everybody out of its table; None if nobody does.
        first_key: of the row that the next claim would take, if rows wait too long.
        unknown: what could not be asked, and why.
        flow: how far its flow is, in a line, where it is of one.
        left: transactions that were prepared, left behind, and have rows of its table.
    """

    model: str
    rules: Rules
    counts: Counts
    pause: PipelinePause | None = None
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = field(default=())
    flow: WingLine | None = None
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def overdue_after_s(self) -> float:
        """Rows that have been due for longer wait too long."""
        return OVERDUE_WINDOWS * self.rules.takes_over_within.total_seconds()


async def waiting_of(connection: AsyncConnection, asked: RowAsked, *, apart: bool) -> Waiting:
    """Ask what waits for one pipeline; joins the caller's transaction.

    Args:
        connection: in a transaction that reads.
        asked: the pipeline.
        apart: ask for each count by itself, under a savepoint. Otherwise all are one statement, and
            what is refused raises.
    """
    told = await (_apart if apart else _together)(connection, asked)
    if told.lock is not None:
        return told
    pipeline, counts, key = asked.pipeline, told.counts, None
    if counts.parked:
        counts = replace(counts, parked_keys=await _parked_keys(connection, asked))
    if counts.oldest_s is not None and counts.oldest_s > told.overdue_after_s:
        key = await first_key(connection, pipeline.leased, asked.question.parts)
    flow = await flow_line(connection, pipeline) if coordinates(pipeline) else None
    return replace(told, counts=counts, first_key=key, flow=flow)


async def _together(connection: AsyncConnection, asked: RowAsked) -> Waiting:
    pipeline, dialect = asked.pipeline, INSIGHT.of(connection)
    columns, source = counted_together(pipeline.leased, asked.question.parts, owner=pipeline.name)
    if (paused := pause_query(asked.tables, pipeline.name)) is not None:
        pause = paused.limit(1).subquery("pause")
        source = source.outerjoin(pause, true())
        columns |= {name: pause.c[name] for name in PAUSE_NAMES}
    if (any_prepared := dialect.is_any_prepared()) is not None:
        columns["is_any_prepared"] = any_prepared
    labelled = [column.label(f"a_{name}") for name, column in columns.items()]
    row = (await connection.execute(select(*labelled).select_from(source))).one()
    answers = dict(zip(columns, row, strict=True))
    told = _waiting(asked, counts_read(pipeline.leased, answers))
    if answers.get("is_any_prepared"):
        told = replace(told, left=await left_in(connection, pipeline.leased.table, apart=True))
    return replace(told, pause=pause_read([answers.get(name) for name in PAUSE_NAMES]))


async def _apart(connection: AsyncConnection, asked: RowAsked) -> Waiting:
    leased, parts, name = asked.pipeline.leased, asked.question.parts, asked.pipeline.name
    if asked.failure is None:
        counts = await counts_apart(connection, leased, parts, owner=name)
    else:
        # Without the host's condition all rows would seem to wait.
        counts = Counts(refused=f"ready() raises {describe(asked.failure)}")
    told = _waiting(asked, counts)
    if counts.due is None and (lock := await lock_of(connection, asked)) is not None:
        return replace(told, lock=lock)
    told = replace(told, left=await left_in(connection, leased.table, apart=True))
    if asked.tables is None:
        return told
    pause = await ask_pause(connection, asked.tables, name, apart=True)
    if isinstance(pause, Refused):
        return replace(told, unknown=(f"pauses: {pause.why}",))
    return replace(told, pause=pause)


def _waiting(asked: RowAsked, counts: Counts) -> Waiting:
    return Waiting(asked.pipeline.leased.name, asked.rivals[asked.pipeline.name], counts)


async def _parked_keys(connection: AsyncConnection, asked: RowAsked) -> tuple[str, ...]:
    leased, parts, owner = asked.pipeline.leased, asked.question.parts, asked.pipeline.name
    question = StateQuestion(leased, parts, owner, ListedState.PARKED, KEYS_MAX)
    found = await ask_part(connection, partial(read_keys, connection, question), apart=True)
    return () if isinstance(found, Refused) else found
