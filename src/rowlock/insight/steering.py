"""What stands behind the actions of a person: the audit log, and pauses.

The log has a line for each action, refused ones too: who did what. The lines go to the
logger ``rowlock.audit``, none of them is left out or counted instead, and what people have typed
cannot forge one: control characters are shown as what they are.

A pause that only some replicas respect is none: every claim asks for them by the gate
(``tables.py``). Where the table is missing, or the manager does not ask for it, nothing is written,
and the error says what to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Connection, Table, delete, inspect, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.errors import ConfigurationError, PipelineError, Refusal, TransactionTimeout
from rowlock.insight.action_errors import AlreadyPaused, NotPausable
from rowlock.insight.facts import PAUSE_NAMES, pause_read
from rowlock.insight.migrations import CONTROLS, PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.shown import iso, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import PipelinePause
from rowlock.logs import get_audit_logger
from rowlock.spi import BULK, Gate, database_time_after

# ---------------------------------------------------------------- the audit log


logger = get_audit_logger()


@dataclass(frozen=True, slots=True)
class Act:
    """What a person wants done, to a row (`model`, `row_id`) or to a pipeline."""

    action: str
    by: str
    reason: str
    model: str = ""
    row_id: str = ""
    pipeline: str = ""

    @property
    def object(self) -> str:
        return self.pipeline or f"{self.model} {self.row_id}"

    def check(self) -> None:
        for name, text, most in (
            ("by", self.by, PERSON_CHARS_MAX),
            ("reason", self.reason, REASON_CHARS_MAX),
        ):
            if not isinstance(text, str) or not text.strip() or len(text) > most:
                raise PipelineError(
                    f"`{name}` is a text of 1 to {most} characters, not {shown(repr(text), 100)}"
                )


@dataclass(slots=True)
class ActResult:
    text: str = "done"


@contextmanager
def audited(act: Act) -> Iterator[ActResult]:
    """Check `act`, and log its result when the block ends."""
    result = ActResult()
    try:
        act.check()
        yield result
    except BaseException as error:  # an action that is cancelled is logged, too
        _tell(act, f"{_kind_of(error)}: {type(error).__name__}")
        raise
    _tell(act, result.text)


def audit_refusal(act: Act, why: str) -> None:
    _tell(act, f"refused: {why}")


def _kind_of(error: BaseException) -> str:
    if isinstance(error, TransactionTimeout):
        return "unknown"
    return (
        "refused" if isinstance(error, Refusal | ConfigurationError | PipelineError) else "failed"
    )


def _tell(act: Act, result: str) -> None:
    told = {
        "actor": act.by,
        "action": act.action,
        "model": act.model,
        "row_id": act.row_id,
        "pipeline": act.pipeline,
        "reason": act.reason,
        "result": result,
    }
    fields = {name: shown(value) for name, value in told.items()}
    logger.info(
        "%s: %s of %s, because: %s (%s)",
        fields["actor"],
        fields["action"],
        shown(act.object),
        fields["reason"],
        result,
        extra=fields,
    )


# ---------------------------------------------------------------- pauses


LASTS_MAX: Final = timedelta(days=36_500)
"""Longest pause that ends by itself; later times are none that each database can keep."""


def controls_of(pipeline: str, tables: InsightTables | None, gates: Sequence[Gate] | None) -> Table:
    """Return the table of pauses; raises NotPausable if there is none, or claims do not ask it."""
    if tables is None or tables.controls is None:
        raise NotPausable(
            f"{pipeline} cannot be paused: the host lends no table of pauses; add tables ="
            " insight_tables(Base.metadata), its migration, and PipelineManager(...,"
            " gates=[tables.pause_gate])",
            pipeline=pipeline,
        )
    if gates is not None and tables.pause_gate not in gates:
        raise NotPausable(
            f"{pipeline} cannot be paused: its claims do not ask for pauses; add"
            " PipelineManager(..., gates=[tables.pause_gate])",
            pipeline=pipeline,
        )
    return tables.controls


def no_table(pipeline: str) -> NotPausable:
    return NotPausable(
        f"{pipeline} cannot be paused: there is no table {CONTROLS} in the database; run the"
        " migration that add_insight_tables, or autogenerate, has written",
        pipeline=pipeline,
    )


def check_until(until: object) -> None:
    """Check the end of a pause, as far as that needs no clock; raises PipelineError."""
    if until is None or (isinstance(until, timedelta) and until <= LASTS_MAX):
        return
    if isinstance(until, datetime) and until.utcoffset() is not None:
        return
    raise PipelineError(
        "`until` is a time with a zone, such as datetime.now(UTC) + timedelta(hours=2), or a"
        f" timedelta of at most {LASTS_MAX.days:,} days, not {until!r:.60}"
    )


async def is_there(connection: AsyncConnection, table: Table) -> bool:
    """Whether the database has `table`; joins the caller's transaction."""

    def look(connection: Connection) -> bool:
        return inspect(connection).has_table(table.name, schema=table.schema)

    return await connection.run_sync(look)


async def write_pause(
    connection: AsyncConnection, controls: Table, act: Act, *, until: datetime | timedelta | None
) -> datetime | None:
    """Pause a pipeline, and return when that ends; joins the caller's transaction."""
    lasts = database_time_after(until) if isinstance(until, timedelta) else database_now()
    now, then = (await connection.execute(select(database_now(), lasts))).one()
    ends: datetime | None = then if isinstance(until, timedelta) else until
    if ends is not None and ends <= now:
        raise PipelineError(f"a pause ends in the future; by the database's clock it is {iso(now)}")
    row = {
        "pipeline": act.pipeline,
        "paused_at": now,
        "paused_by": act.by,
        "reason": act.reason,
        "until": ends,
    }
    bulk = BULK.of(connection)
    inserted = bulk.insert(controls, tuple(row))
    statement = inserted.on_conflict_do_update(
        index_elements=[controls.c.pipeline],
        set_={name: inserted.excluded[name] for name in row if name != "pipeline"},
        where=not_(_is_in_force(controls)),
    )
    parameters = bulk.insert_parameters(tuple(row), [tuple(row.values())])
    if (await connection.execute(statement, parameters)).rowcount == 0:
        paused = controls.c
        found = select(paused.paused_by, paused.reason).where(paused.pipeline == act.pipeline)
        by, reason = (await connection.execute(found)).one()
        raise AlreadyPaused(pipeline=act.pipeline, by=by, reason=reason)
    return ends


async def delete_pause(
    connection: AsyncConnection, controls: Table, pipeline: str
) -> PipelinePause | None:
    """End the pause of a pipeline, and return it; None if there was none. Joins the caller's
    transaction.
    """
    statement = (
        delete(controls)
        .where(controls.c.pipeline == pipeline, _is_in_force(controls))
        .returning(*(controls.c[name] for name in PAUSE_NAMES))
    )
    found = (await connection.execute(statement)).first()
    return None if found is None else pause_read(found)


def _is_in_force(controls: Table) -> ColumnElement[bool]:
    return or_(controls.c.until.is_(None), controls.c.until > database_now())
