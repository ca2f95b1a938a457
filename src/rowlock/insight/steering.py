"""What stands behind the actions of a person: the audit log, and pauses.

The log has a line for each action, refused ones too: who did what. The lines go to the
logger ``rowlock.audit``, none of them is left out or counted instead, and what people have typed
cannot forge one: control characters are shown as what they are.

A pause that only some replicas respect is none: every claim asks for them by the gate
(``tables.py``). Where the table is missing, or the manager does not ask for it, nothing is written,
and the error says what to add.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Table, delete, inspect, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.errors import ConfigurationError, PipelineError, Refusal, TransactionTimeout
from rowlock.insight.migrations import CONTROLS, PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.questions import PAUSE_NAMES, pause_read
from rowlock.insight.shown import iso, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import PipelinePause
from rowlock.logs import get_audit_logger
from rowlock.spi import ROWS, Gate, database_time_after

# ---------------------------------------------------------------- refusals


class RowNotFound(Refusal):
    """There is no row with this key; nothing was written."""

    def __init__(self, *, model: str, row_id: object) -> None:
        super().__init__(f"{model} has no row {row_id}")
        self.model, self.row_id = model, row_id


class LeaseChanged(Refusal):
    """The lease of a row is not the one that was shown, so it is another holder's; nothing was
    written.

    Attributes:
        owner: who holds or keeps the row by now; None if nobody does.
    """

    def __init__(self, *, model: str, row_id: object, owner: str | None = None) -> None:
        now = "nobody has it" if owner is None else f"{owner} has it"
        super().__init__(f"the lease of {model} {row_id} is not the one that was shown: {now} now")
        self.model, self.row_id, self.owner = model, row_id, owner


class LeaseAlive(Refusal):
    """The lease of a row has not ended, and was not to be broken by force; nothing was written.

    Attributes:
        owner: who holds the row.
        token: of its lease.
        seconds_left: of the lease, unless it is renewed.
    """

    def __init__(
        self, *, model: str, row_id: object, owner: str, token: str, seconds_left: float
    ) -> None:
        super().__init__(
            f"{owner} holds {model} {row_id} by the lease {token}, for {seconds_left:.0f} s more"
            " unless that is renewed; if it is gone, use force"
        )
        self.model, self.row_id = model, row_id
        self.owner, self.token, self.seconds_left = owner, token, seconds_left


class AlreadyPaused(Refusal):
    """A pipeline is paused already, and that pause was not to be replaced; nothing was written."""

    def __init__(self, *, pipeline: str, by: str, reason: str) -> None:
        super().__init__(
            f"{by} has paused {pipeline} already: {shown(reason)}; resume it first, or replace that"
            " pause (--replace)"
        )
        self.pipeline, self.by = pipeline, by


class NotPausable(Refusal):
    """Pipelines of this host cannot be paused: half a pause is none."""

    def __init__(self, message: str, *, pipeline: str) -> None:
        super().__init__(message)
        self.pipeline = pipeline


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
    except (Exception, CancelledError) as error:
        is_refused = isinstance(error, Refusal | ConfigurationError | PipelineError)
        kind = "refused" if is_refused else "failed"
        kind = "unknown" if isinstance(error, TransactionTimeout) else kind
        _tell(act, f"{kind}: {type(error).__name__}")
        raise
    _tell(act, result.text)


def audit_refusal(act: Act, why: str) -> None:
    _tell(act, f"refused: {why}")


def _tell(act: Act, result: str) -> None:
    told = asdict(act) | {"actor": act.by, "object": act.object, "result": result}
    del told["by"]
    text = "%(actor)s: %(action)s of %(object)s, because: %(reason)s (%(result)s)"
    logger.info(text, {name: shown(value) for name, value in told.items()})


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
    return await connection.run_sync(
        lambda one: inspect(one).has_table(table.name, schema=table.schema)
    )


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
    bulk = ROWS.of(connection)
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
    """End the pause of a pipeline, and return it; None if there was none."""
    statement = (
        delete(controls)
        .where(controls.c.pipeline == pipeline, _is_in_force(controls))
        .returning(*(controls.c[name] for name in PAUSE_NAMES))
    )
    found = (await connection.execute(statement)).first()
    return None if found is None else pause_read(found)


def _is_in_force(controls: Table) -> ColumnElement[bool]:
    return or_(controls.c.until.is_(None), controls.c.until > database_now())
