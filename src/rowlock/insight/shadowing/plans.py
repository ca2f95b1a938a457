"""What `process` would make of rows: rehearsals, in which rows are held, and shadow runs, in which
none is.

Not here: the other questions (``insight.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import QueryableAttribute

from rowlock.errors import AppError, OutcomeError, describe
from rowlock.insight.asking.questioner import Questioner
from rowlock.insight.naming import pipeline_named, read_key
from rowlock.insight.questions import is_of_a_statement, refusal_of
from rowlock.insight.rehearsing.answer import Rehearsal
from rowlock.insight.rehearsing.rehearsal import IDS_MAX, PipelineRehearsal
from rowlock.insight.shadowing.comparison import ComparedColumns
from rowlock.insight.shadowing.shadow import PipelineShadow
from rowlock.insight.shadowing.shadow_run import ShadowRun
from rowlock.insight.shown import shown
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import column_of

T = TypeVar("T")
SHADOW_ROWS: Final = 20
"""How many rows are shadowed, unless said otherwise."""
SHADOW_WAIT: Final = timedelta(seconds=60)
"""How long replicas may take, unless said otherwise."""
SHADOW_WAIT_MAX: Final = timedelta(minutes=5)
"""Longest time that replicas may take."""


class Plans(Questioner):
    """Asks what would come of rows."""

    async def rehearse(self, pipeline: str, ids: Iterable[object]) -> Rehearsal:
        """Run `process` for rows, and say what would come of each; nothing is written.

        The rows are held meanwhile as ``plan:...``. `process` finds ``item.is_rehearsal`` true, and
        its sessions only read; what it does to other systems is done.

        Args:
            pipeline: its name.
            ids: keys of rows, at most 100; text is read by the type of the key.

        Raises:
            AppError: the app has no such pipeline, the text is no key, or there are too many.
            ConfigurationError: the pipeline does not say ``rehearsable = True``.
            LockWaitTimeout: somebody holds one of the rows.
            LeaseLost: a row was not held until its rehearsal ended.
            TransactionTimeout: the database did not answer in time.
        """
        found = pipeline_named(pipeline, self.pipelines.values())
        keys = [read_key(found.leased, one) for one in ids]
        if not 1 <= len(keys) <= IDS_MAX:
            raise AppError(f"1 to {IDS_MAX} rows are rehearsed at once, not {len(keys)}")
        hidden = self._columns(found.leased, self._hide)
        sessions = self.host_of(found).session_factory
        rehearsal = PipelineRehearsal(sessions, found, hidden=hidden, redact=self._redact or str)
        return Rehearsal(found.name, found.leased.name, await rehearsal.rehearse(keys))

    async def shadow(
        self,
        pipeline: str,
        *,
        rows: int = SHADOW_ROWS,
        wait: timedelta = SHADOW_WAIT,
        ignore: Iterable[Any] = (),
    ) -> ShadowRun:
        """Run `process` for the first rows in line, beside the replicas that live, and compare what
        it would have written with what they wrote.

        No row is held, locked or written, so no replica is kept from one. `process` finds
        ``item.is_rehearsal`` true, and its sessions only read; what it does to other systems is
        done.

        Args:
            pipeline: its name, which is also that of the pipeline that replicas run.
            rows: how many at most, 1 to 100.
            wait: how long replicas may take for them, up to 5 minutes, by the database's clock.
            ignore: columns that are not compared, such as times that `process` reads from a clock:
                names or mapped attributes.

        Raises:
            AppError: the app has no such pipeline, `ready` cannot be asked, the model has no such
                column, or a number is out of bounds.
            ConfigurationError: the pipeline does not say ``rehearsable = True``.
            TransactionTimeout: the database did not answer in time.
        """
        found = pipeline_named(pipeline, self.pipelines.values())
        _check_bounds(rows, wait)
        asked = self._asked(found, None)
        if asked.failure is not None:
            raise AppError(f"ready() of {found.name} raises {describe(asked.failure)}")
        columns = ComparedColumns.of(
            found.leased,
            ignored=_ignored(found.leased, ignore),
            hidden=self._columns(found.leased, self._hide),
        )
        sessions = self.host_of(found).session_factory

        async def read(ask: Callable[[AsyncSession, AsyncConnection], Awaitable[T]]) -> T:
            return await self.read_by_session(found.leased, ask, sessions=sessions)

        shadow = PipelineShadow(
            sessions, asked, read=read, columns=columns, redact=self._redact or str
        )
        try:
            at, answers = await shadow.run(rows, wait)
        except Exception as error:
            if not is_of_a_statement(error):
                raise
            raise AppError(
                f"the rows of {found.name} cannot be read: {refusal_of(error)}"
            ) from error
        return ShadowRun(found.name, found.leased.name, at, wait.total_seconds(), answers)


def _check_bounds(rows: object, wait: object) -> None:
    if not isinstance(rows, int) or rows is True or not 1 <= rows <= IDS_MAX:
        raise AppError(f"1 to {IDS_MAX} rows are shadowed at once, not {rows!r:.20}")
    if not isinstance(wait, timedelta) or not timedelta(0) <= wait <= SHADOW_WAIT_MAX:
        longest = SHADOW_WAIT_MAX.total_seconds()
        given = f"{wait.total_seconds():g} s" if isinstance(wait, timedelta) else f"{wait!r:.40}"
        raise AppError(f"wait must be a timedelta of 0 to {longest:g} s, not {given}")


def _ignored(leased: LeasedTable, given: Iterable[Any]) -> frozenset[Column[Any]]:
    columns = (given,) if isinstance(given, str | QueryableAttribute) else given
    if not isinstance(columns, Iterable):
        raise AppError(f"ignore must be columns, or their names, not {columns!r:.40}")
    try:
        return frozenset(column_of(leased, one) for one in columns)
    except OutcomeError as error:
        raise AppError(shown(error, 1000)) from None
