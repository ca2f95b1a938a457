"""Runs `process` for the first rows in line, beside the replicas that work on them, and compares
what it would have written with what they wrote.

The one idea: no row is held, locked or written, so no replica is kept from one for a moment. The
rows are read once as a claim would see them; `process` runs on what was read, and meanwhile the
rows are looked at again and again until a replica has written an outcome or the wait is over.

Not here: what a look shows (``watching.py``), and what counts as a difference (``comparison.py``).

Source: GitHub's Scientist (a candidate runs beside the control, and mismatches are reported), and
the mirrored traffic of service meshes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, sleep
from rowlock.containment import contained_task
from rowlock.errors import describe
from rowlock.insight.facts import RowAsked
from rowlock.insight.rehearsing.answer import beside_of
from rowlock.insight.rehearsing.attempt import (
    REHEARSAL_TIMEOUT,
    ReadOnlyProcess,
    check_rehearsable,
    read_only_process,
)
from rowlock.insight.shadowing.comparison import (
    ComparedColumns,
    RowComparison,
    ShadowWrite,
    changed_names,
    live_kind,
    stamp_of,
    to_ask,
    was_worked_on_again,
    write_of,
)
from rowlock.insight.shadowing.shadow_run import ShadowRow, ShadowVerdict
from rowlock.insight.shadowing.snapshot import (
    RowLook,
    SnapshotRow,
    is_of_a_value,
    read_as_kept,
    read_look,
    read_snapshot,
)
from rowlock.insight.shadowing.watching import WatchedRow, WatchRules
from rowlock.insight.shown import duration
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.host_code.call import Ended
from rowlock.pipelines.outcomes import Outcome
from rowlock.pipelines.settling.decisions import Decision
from rowlock.pipelines.settling.planner import Planner

T = TypeVar("T")

LOOK_EVERY: Final = timedelta(milliseconds=250)
"""Rest between two looks at the rows."""
AT_ONCE_MAX: Final = 8
"""Of how many rows at most `process` runs at once: each may need a connection."""


class AsksDatabase(Protocol):
    """Asks the database of the pipeline, in one short transaction that reads."""

    async def __call__(self, ask: Callable[[AsyncSession, AsyncConnection], Awaitable[T]]) -> T:
        """Return what `ask` gives, called with a session and its connection."""
        ...


@dataclass(frozen=True, slots=True)
class ShadowedRow:
    """What came of `process` for a row of the snapshot.

    Attributes:
        item: that it got; None if it was not run.
        decision: what came of it; None if it did not end, or was not run.
    """

    item: PipelineItem[Any] | None = None
    decision: Decision | None = None


class PipelineShadow:
    """Shadows the replicas that run one pipeline.

    Args:
        session_factory: the host's.
        asked: the pipeline, and the condition of its claims.
        read: asks the database.
        columns: that are compared.
        redact: makes of an error's text in a row what is shown.

    Raises:
        ConfigurationError: the pipeline does not say that it may be rehearsed.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        asked: RowAsked,
        *,
        read: AsksDatabase,
        columns: ComparedColumns,
        redact: Callable[[str], str] = str,
    ) -> None:
        check_rehearsable(asked.pipeline)
        self._redact = redact
        self._session_factory, self._pipeline = session_factory, asked.pipeline
        self._question, self._read, self._columns = asked.question, read, columns
        self._leased = asked.pipeline.leased
        self._rules = WatchRules(self._leased, asked.pipeline.name, columns.content)
        self._places = asyncio.Semaphore(AT_ONCE_MAX)

    async def run(self, limit: int, wait: timedelta) -> tuple[datetime, tuple[ShadowRow, ...]]:
        """Return when the rows were read, by the database, and what came of each.

        Args:
            limit: most rows.
            wait: how long replicas may take, by the database's clock.

        Raises:
            TransactionTimeout: the database did not answer in time.
        """
        options = self._pipeline.options()

        async def ask(
            session: AsyncSession, connection: AsyncConnection, *, apart: bool
        ) -> tuple[datetime, tuple[SnapshotRow, ...]]:
            return await read_snapshot(
                session, connection, self._question, limit=limit, options=options, apart=apart
            )

        at, rows = await self._whole_else_apart(ask)
        if not rows:
            return at, ()
        async with read_only_process(self._session_factory, self._pipeline) as process:
            watching = contained_task(self._watched(rows, at, wait), name="rowlock: shadow, watch")
            attempts = [
                contained_task(self._shadowed(process, row, at), name="rowlock: shadow")
                for row in rows
            ]
            try:
                shadowed = await asyncio.gather(*attempts)
                watched = await watching
            finally:
                await _end(watching, *attempts)
            pairs = zip(watched, shadowed, strict=True)
            return at, tuple([await self._compared(process, *pair, at=at) for pair in pairs])

    async def _watched(
        self, rows: Sequence[SnapshotRow], at: datetime, wait: timedelta
    ) -> list[WatchedRow]:
        watched = [self._rules.begin(row) for row in rows]
        # Bounded also where the database's clock stands still.
        for _ in range(math.ceil(wait / LOOK_EVERY) + 1):
            keys = [row.before.key for row in watched if not row.is_finished]

            async def ask(
                session: AsyncSession, connection: AsyncConnection, *, apart: bool, keys: Any = keys
            ) -> RowLook:
                return await read_look(connection, self._leased, keys, apart=apart)

            look = await self._whole_else_apart(ask)
            watched = [self._rules.after_look(row, look) for row in watched]
            if look.at >= at + wait or all(row.is_finished for row in watched):
                break
            await sleep(LOOK_EVERY.total_seconds())
        return watched

    async def _whole_else_apart(self, ask: Callable[..., Awaitable[T]]) -> T:
        """Return what `ask` gives, of each row by itself if one of them cannot be read."""
        try:
            return await self._read(partial(ask, apart=False))
        except Exception as error:
            if not is_of_a_value(error):
                raise
        return await self._read(partial(ask, apart=True))

    async def _shadowed(
        self, process: ReadOnlyProcess, row: SnapshotRow, at: datetime
    ) -> ShadowedRow:
        if row.instance is None:
            return ShadowedRow()
        async with self._places:
            item = self._item(process, row, at)
            result = await process.run(item)
        return ShadowedRow(item, None if result is None else process.decide(item, result))

    def _item(self, process: ReadOnlyProcess, row: SnapshotRow, at: datetime) -> PipelineItem[Any]:
        item: PipelineItem[Any] = PipelineItem(
            id=row.key,  # pyright: ignore[reportCallIssue]
            # No row carries it: nothing is leased.
            lock_token=self._leased.new_token(),
            lock_owner=self._pipeline.name,
            lock_expires_at=at + self._pipeline.settings.lock_timeout,
            prev_lock_expired=row.prev_lock_expired,
            attempt=row.attempt,
            place=row.place,
            claimed_at=monotonic(),
            trusted_until=monotonic() + 2 * REHEARSAL_TIMEOUT.total_seconds(),
            session_factory=process.sessions,
            locker=process.locker,
            leased=self._leased,
            is_rehearsal=True,
        )
        item.row = row.instance
        return item

    async def _compared(
        self, process: ReadOnlyProcess, row: WatchedRow, shadowed: ShadowedRow, *, at: datetime
    ) -> ShadowRow:
        uncompared = self._uncompared(row, shadowed)
        if uncompared is not None:
            return uncompared
        item, outcome = shadowed.item, shadowed.decision
        assert item is not None
        assert not isinstance(outcome, Ended | None)
        now = at if row.after is None else stamp_of(self._leased, row.after)
        try:
            write = write_of(Planner.of(process.context, now), self._leased, item, outcome=outcome)
        # Of the host's schedule, or of a value of its own: it costs this row alone.
        except BaseException as error:  # noqa: BLE001
            return self._incomparable(item, error)
        comparison = RowComparison(self._columns, row, write, await self._kept(row, write))
        try:
            return self._answer(comparison, item, outcome)
        except BaseException as error:  # noqa: BLE001 - as above
            return self._incomparable(item, error)

    def _incomparable(self, item: PipelineItem[Any], error: BaseException) -> ShadowRow:
        reason = self._redact(describe(error))
        return ShadowRow(str(item.id), ShadowVerdict.NOT_COMPARED, reason=reason)

    def _answer(
        self, comparison: RowComparison, item: PipelineItem[Any], outcome: Outcome
    ) -> ShadowRow:
        differences, write = tuple(comparison.differences()), comparison.write
        return ShadowRow(
            str(item.id),
            ShadowVerdict.DIFFERS if differences else ShadowVerdict.SAME,
            comparison.live,
            write.kind,
            None if write.error is None else self._redact(write.error),
            differences,
            tuple(comparison.not_compared()),
            beside_of(outcome),
            item.process_s or 0.0,
            None if comparison.live_error is None else self._redact(comparison.live_error),
        )

    def _uncompared(self, row: WatchedRow, shadowed: ShadowedRow) -> ShadowRow | None:
        """Return the answer for a row that is not compared; None for one that is."""
        is_told = row.is_finished and row.unreadable is None
        verdict, reason = (
            self._verdict(row, shadowed)
            if row.unreadable is None
            else (ShadowVerdict.NOT_COMPARED, row.unreadable)
        )
        if verdict is None:
            return None
        live = live_kind(self._leased, row) if is_told else None
        took_s = 0.0 if shadowed.item is None else shadowed.item.process_s or 0.0
        return ShadowRow(str(row.before.key), verdict, live, reason=reason, took_s=took_s)

    def _verdict(
        self, row: WatchedRow, shadowed: ShadowedRow
    ) -> tuple[ShadowVerdict | None, str | None]:
        if shadowed.item is None:
            return ShadowVerdict.CHANGED, "while it was read"
        if shadowed.decision is None:
            limit = duration(REHEARSAL_TIMEOUT.total_seconds())
            return ShadowVerdict.UNFINISHED, f"process did not end within {limit}"
        if not row.is_finished:
            was_reset = "a replica reset it, for want of a related row" if row.was_reset else None
            return ShadowVerdict.NOT_WORKED_ON, was_reset
        if (meanwhile := self._meanwhile(row)) is not None:
            return ShadowVerdict.CHANGED, meanwhile
        if isinstance(shadowed.decision, Ended):
            return ShadowVerdict.NOT_COMPARED, shadowed.decision.value
        return None, None

    def _meanwhile(self, row: WatchedRow) -> str | None:
        if row.held_by:
            return f"held by {', '.join(sorted(row.held_by))}"
        if names := changed_names(row, self._leased):
            return ", ".join(names)
        return "worked on again" if was_worked_on_again(self._leased, row) else None

    async def _kept(self, row: WatchedRow, write: ShadowWrite) -> dict[Column[Any], Any]:
        """Return what columns would make of those values of the shadow that are not equal to the
        row's as they are.
        """
        values = to_ask(self._columns, row, write)
        if not values:
            return {}

        async def ask(session: AsyncSession, connection: AsyncConnection) -> dict[Column[Any], Any]:
            return await read_as_kept(connection, values)

        return await self._read(ask)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
