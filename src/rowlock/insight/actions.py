"""What a person does to rows and pipelines: release, park, unpark, make due, pause, resume.

The one idea: each action is one short transaction that says by whom and why, and writes only where
the row, or the lease, is as that person has seen it. A line of the audit log follows each
(``steering.py``).

Not here: how a lease is broken (``leases/release.py``), and what a service writes for itself
(``services/due.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from pydantic_core import to_jsonable_python
from sqlalchemy import Table, and_, case, select, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Pipeline, hint_after_commit, pipeline_hinter
from rowlock.clock import monotonic
from rowlock.insight.asking import HostedPipelines, Sessions, time_left
from rowlock.insight.explanation import SeenLease
from rowlock.insight.recorder import tell_action
from rowlock.insight.shown import iso, shown
from rowlock.insight.steering import (
    Act,
    LeaseAlive,
    LeaseChanged,
    RowNotFound,
    audited,
    check_until,
    controls_of,
    delete_pause,
    is_there,
    no_table,
    write_pause,
)
from rowlock.insight.verdicts import PipelinePause
from rowlock.leases.release import break_lease, is_as_shown
from rowlock.rows.assignments import without_onupdate
from rowlock.services.due import check_schedule, due_now_values, parked_values, unparked_values
from rowlock.services.request import write_past_lease
from rowlock.spi import (
    ColumnValues,
    LeasedTable,
    Retries,
    database_instant,
    in_transaction,
    is_outage,
)

T = TypeVar("T")

SCHEMA: Final = "rowlock.action/1"
_KEYS: Final = ("action", "model", "row_id", "pipeline", "by", "reason")
NOT_PARKED: Final = "was not parked"
NOT_PAUSED: Final = "was not paused"
Write = Callable[[AsyncSession, LeasedTable, Any], Awaitable[bool]]
"""Writes the row with a key, and returns whether it was as it was to be."""
_ROW_ACTS: Final = {
    "release": ("release a row", "released"),
    "park": ("park a row", "parked"),
    "unpark": ("put a row back", "put back, due now"),
    "make_due": ("make a row due", "due now"),
}
"""Of each change of a row: what it is for, and what is told."""
ACTION_TIMEOUT: Final = timedelta(seconds=10)
LAST_TRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What was done.

    Attributes:
        until: when a pause ends; None if it does not end by itself.
        is_changed: whether anything was to be done; False if the row or the pipeline was so
            already.
        ended: the pause that this ended.
    """

    act: Act
    outcome: str
    until: datetime | None = None
    is_changed: bool = True
    ended: PipelinePause | None = None

    needs_person = False

    def text(self, width: int = 0) -> str:
        ends = "" if self.until is None else f" until {iso(self.until)}"
        text = f"{shown(self.act.object)} {self.outcome}{ends}"
        if self.ended is None:
            return text
        since = f"since {iso(self.ended.at)}: {shown(self.ended.reason)}"
        return f"{text}; this ends the pause by {shown(self.ended.by)} {since}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **{name: getattr(self.act, name) or None for name in _KEYS},
            "outcome": self.outcome,
            "until": iso(self.until),
            "ended": to_jsonable_python(self.ended),
        }


class Actions(HostedPipelines):
    """Acts on the rows and pipelines of a host: the part of `Insight` that writes."""

    async def release(
        self,
        model: type[Any] | str,
        id: object,  # noqa: A002
        *,
        seen: SeenLease,
        by: str,
        reason: str,
        force: bool = False,
    ) -> ActionDone:
        """Free a row, and what its holder has locked for it, if its lease is as `seen`.

        Args:
            model: the mapped class, its name, or the name of its table.
            id: the row's key; text is read by the type of the key.
            seen: the lease as it was looked at.
            by: who does it, in at most 100 characters.
            reason: why, in at most 200 characters.
            force: also if the lease has not ended. Its holder writes nothing more, but its code may
                still be running.

        Raises:
            RowNotFound: there is no such row.
            LeaseChanged: another holder has it by now, or nobody.
            LeaseAlive: its lease has not ended, and nothing was forced.
            AppError: no pipeline of the app knows such a model, or the text is no key of it.
            PipelineError: `by` or `reason` says nothing, or too much.
            TransactionTimeout: the database did not answer in time.
        """
        related = [
            lock.leased
            for pipeline in self.pipelines.values()
            for lock in pipeline.declared_locks
            if pipeline.name == seen.owner
        ]
        write = partial(break_lease, seen=seen, related=related, only_ended=not force)
        act = Act("release", by, reason, _name_of(model), str(id))
        return await self._on_row(act, model, id, seen=seen, write=write)

    async def park(
        self,
        model: type[Any] | str,
        id: object,  # noqa: A002
        *,
        by: str,
        reason: str,
        seen: SeenLease | None = None,
    ) -> ActionDone:
        """Set a row aside, also one that is at work: its outcome is written, and it stays parked.

        Args and errors are those of `release`, but `seen` may be left out; then the row is parked
        whatever its lease is by now.

        Raises:
            ModelError: the model has no `ScheduleColumns`.
        """
        act = Act("park", by, reason, _name_of(model), str(id))
        write = _values(lambda it: parked_values(it, f"parked by {by}: {reason}"), seen)
        return await self._on_row(act, model, id, seen=seen, write=write)

    async def unpark(
        self,
        model: type[Any] | str,
        id: object,  # noqa: A002
        *,
        by: str,
        reason: str,
        seen: SeenLease | None = None,
    ) -> ActionDone:
        """Put a parked row back into play, due now and with a clean count of attempts; as `park`.

        A row that is not parked is left as it is.
        """
        act = Act("unpark", by, reason, _name_of(model), str(id))
        write = _values(unparked_values, seen, only_parked=True)
        return await self._on_row(act, model, id, seen=seen, write=write)

    async def make_due(
        self,
        model: type[Any] | str,
        id: object,  # noqa: A002
        *,
        by: str,
        reason: str,
        seen: SeenLease | None = None,
    ) -> ActionDone:
        """Make a row due now; a parked one stays parked. Otherwise as `park`."""
        act = Act("make_due", by, reason, _name_of(model), str(id))
        write = _values(due_now_values, seen)
        return await self._on_row(act, model, id, seen=seen, write=write)

    async def _on_row(
        self,
        act: Act,
        model: type[Any] | str,
        id: object,  # noqa: A002
        *,
        seen: SeenLease | None,
        write: Write,
    ) -> ActionDone:
        """Have `write` change the row; one that is not parked is not put back."""
        purpose, outcome = _ROW_ACTS[act.action]
        with audited(act) as result:
            leased, key = self.row(model, id)
            if act.action != "release":
                check_schedule(leased)

            async def work(session: AsyncSession, connection: AsyncConnection) -> bool:
                if await write(session, leased, key):
                    _hint(session, leased)
                    return True
                refusal = await _why_not(connection, leased, key, seen=seen)
                if act.action == "unpark" and not isinstance(refusal, RowNotFound | LeaseChanged):
                    return False
                raise refusal or LeaseChanged(model=leased.name, row_id=key)

            is_changed = await self._transact(leased, work, purpose=purpose)
            if not is_changed:
                outcome = result.text = NOT_PARKED
        return await self._told(ActionDone(act, outcome, is_changed=is_changed), leased)

    async def pause(
        self,
        pipeline: str,
        *,
        by: str,
        reason: str,
        until: datetime | timedelta | None = None,
        replace: bool = False,
    ) -> ActionDone:
        """Have a pipeline claim nothing, in any replica; what runs goes on.

        A pause holds once it is committed, and a restart keeps it.

        Args:
            pipeline: its name.
            by: who does it, in at most 100 characters.
            reason: why, in at most 200 characters.
            until: when it ends, or how long it lasts, by the database's clock; None: until
                `resume`.
            replace: end a pause that there is; `ActionDone.ended` says whose.

        Raises:
            AlreadyPaused: it is paused, and that pause was not to be replaced.
            NotPausable: the host has no table of pauses, or its manager no gate.
            AppError: the app has no such pipeline.
            PipelineError: `until` is not ahead, or no time with a zone; or as `release`.
            TransactionTimeout: the database did not answer in time.
        """
        act = Act("pause", by, reason, pipeline=str(pipeline))
        with audited(act):
            found = self.pipeline(pipeline)
            controls = self._controls(found)
            check_until(until)

            async def work(
                session: AsyncSession, connection: AsyncConnection
            ) -> tuple[datetime | None, PipelinePause | None]:
                ended = await delete_pause(connection, controls, found.name) if replace else None
                return await write_pause(connection, controls, act, until=until), ended

            ends, ended = await self._on_controls(found, work, purpose="pause a pipeline")
        return await self._told(ActionDone(act, "paused", ends, ended=ended), found.leased)

    async def resume(self, pipeline: str, *, by: str, reason: str) -> ActionDone:
        """End the pause of a pipeline, which claims again at once, and say whose that was; errors
        as of `pause`.
        """
        act = Act("resume", by, reason, pipeline=str(pipeline))
        with audited(act) as result:
            found = self.pipeline(pipeline)
            controls = self._controls(found)

            async def work(
                session: AsyncSession, connection: AsyncConnection
            ) -> PipelinePause | None:
                _hint(session, found.leased)
                return await delete_pause(connection, controls, found.name)

            ended = await self._on_controls(found, work, purpose="resume a pipeline")
            if ended is None:
                result.text = NOT_PAUSED
        outcome = NOT_PAUSED if ended is None else "resumed"
        done = ActionDone(act, outcome, is_changed=ended is not None, ended=ended)
        return await self._told(done, found.leased)

    async def _told(self, done: ActionDone, leased: LeasedTable) -> ActionDone:
        if done.is_changed:
            history = None if self.tables is None else self.tables.history
            sessions, act = self.sessions_of(leased), asdict(done.act)
            await tell_action(sessions, leased, history=history, act=act)
        return done

    async def _transact(
        self,
        leased: LeasedTable,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        sessions: Sessions | None = None,
    ) -> T:
        """Run `work` in one transaction, again while others are in the way: SQLite has no order of
        writers.
        """
        timeout = time_left(ACTION_TIMEOUT)
        ends_at = monotonic() + timeout.total_seconds()
        retries = Retries(lambda _failed_at: ends_at)
        while True:
            try:
                return await in_transaction(
                    sessions or self.sessions_of(leased),
                    leased,
                    work,
                    purpose=purpose,
                    timeout=timeout,
                )
            except DBAPIError as error:
                retries.failed()
                # Without an answer, the transaction may have been committed.
                if error.connection_invalidated or not is_outage(error) or retries.are_over:
                    raise
            await retries.rest()
            timeout = timedelta(seconds=max(LAST_TRY_S, ends_at - monotonic()))

    def _controls(self, pipeline: Pipeline[Any]) -> Table:
        return controls_of(pipeline.name, self.tables, self.host_of(pipeline).gates)

    async def _on_controls(
        self,
        pipeline: Pipeline[Any],
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
    ) -> T:
        sessions, controls = self.host_of(pipeline).session_factory, self._controls(pipeline)
        transact = partial(self._transact, pipeline.leased, sessions=sessions)
        try:
            return await transact(work, purpose=purpose)
        except DBAPIError as error:
            look = f"look for {controls.name}"
            if await transact(lambda _, connection: is_there(connection, controls), purpose=look):
                raise
            raise no_table(pipeline.name) from error


async def _why_not(
    connection: AsyncConnection, leased: LeasedTable, key: object, *, seen: SeenLease | None
) -> RowNotFound | LeaseChanged | LeaseAlive | None:
    """Return why nothing was written; None if the row is as `seen`, and nobody has it."""
    is_as = true() if seen is None else is_as_shown(leased, seen)
    kept = map(leased.column, ("lock_owner", "lock_expires_at"))
    found = select(*kept, database_instant(), case((is_as, 1), else_=0)).where(leased.key == key)
    row: Any = (await connection.execute(found)).first()
    if row is None:
        return RowNotFound(model=leased.name, row_id=key)
    owner, expires_at, now, is_as_seen = row
    if not is_as_seen:
        return LeaseChanged(model=leased.name, row_id=key, owner=owner)
    if seen is None or expires_at is None:
        return None
    left_s = max(0.0, (expires_at - now).total_seconds())
    return LeaseAlive(
        model=leased.name, row_id=key, owner=str(owner), token=str(seen.token), seconds_left=left_s
    )


def _values(
    values: Callable[[LeasedTable], ColumnValues],
    seen: SeenLease | None,
    *,
    only_parked: bool = False,
) -> Write:

    async def write(session: AsyncSession, leased: LeasedTable, key: Any) -> bool:
        changes = without_onupdate(leased, values(leased))
        is_as = true() if seen is None else is_as_shown(leased, seen)
        only = leased.attribute("parked_at").is_not(None) if only_parked else true()
        return await write_past_lease(session, leased, key, values=changes, where=and_(is_as, only))

    return write


def _hint(session: AsyncSession, leased: LeasedTable) -> None:
    # Without listeners, as in a command line, a claim finds the row by polling.
    if pipeline_hinter.reaches(leased.model):
        hint_after_commit(session, leased.model)


def _name_of(model: object) -> str:
    return model.__name__ if isinstance(model, type) else str(model)
