"""Kills a replica of a flow at each of its statements in turn, and checks that the next replica
comes to what one loop comes to.

The one idea: of a flow nothing is outside of the database. So what is compared is known: its
results, states and timers, whatever the flow is.

Source: `crash_everywhere`, which does so with the awaits of `process`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.errors import PipelineError
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.testing.crashes import CrashError, check_empty, empty
from rowlock.testing.databases import TemporaryDatabase
from rowlock.testing.failpoints import Boundary, CommittedWrites
from rowlock.testing.killable_replica import KillableReplica, without_logs
from rowlock.testing.streams.contract import Add, FlowTrial, add_events
from rowlock.testing.streams.running import recorded

MOMENTS_MAX: Final = 10_000
"""Moments at which a replica is killed before a flow is taken for endless."""
STEPS: Final = 3  # least steps for the events
SHARDS: Final = 2
RUN_S_MAX: Final = 300.0
AFTER_DEATH: Final = 3
"""Lengths of a lease until the next replica begins: by then, the dead one counts as absent."""
_ADVICE: Final = (
    "A step that is done again has to come to the same: a handler is to depend on its arguments"
    " alone (docs/how-to/streams-test.md)"
)


async def crash_flow_everywhere(
    database: TemporaryDatabase,
    flow: StreamFlow[Any],
    *,
    events: Callable[[], Sequence[Any]],
    add: Add | None = None,
    before: Sequence[StreamFlow[Any]] = (),
    checkpoint: Checkpoint | None = None,
    commits_only: bool = False,
) -> int:
    """Kill a replica of a flow at each of its statements in turn, and behind each COMMIT, and check
    that the next replica comes to what one loop over the same steps comes to.

    The events are done in three steps or a few more. With `@virtual_time` and
    `rowlock_virtual_database` nothing is waited for.

    Args:
        database: of the test's own, with empty tables and a clock; all rows are deleted between the
            runs.
        flow: as the host declares it.
        events: returns new events, the same each time; a dozen are enough.
        add: adds some of them in a transaction; by default as `StreamContract.add`.
        before: flows over whose outputs it is, the first one first.
        checkpoint: how often states are written; by default as declared.
        commits_only: kill it behind each COMMIT that has written something, which is a fifth of
            the moments: what is not committed is gone, at whichever statement that was.

    Returns:
        At how many moments it was killed.

    Raises:
        CrashError: it does make a difference: says at which statement, and what is different.
        PipelineError: it cannot be told: there is no clock, the tables are not empty, or the flow
            does not come to an end.
    """
    declared: Sequence[StreamFlow[Any]] = [*before, flow]

    async def add_some(session: AsyncSession, some: Sequence[Any]) -> None:
        await add_events(session, some, flows=declared)

    if database.clock is None:
        raise PipelineError(
            "crash_flow_everywhere lets leases run out; give it a database with a clock"
        )
    trial = FlowTrial(
        database, flow, before, events=(), add=add or add_some, pause=timedelta(), steps=STEPS
    )
    changes = {"shards": SHARDS, "checkpoint": checkpoint}
    runs = _Runs(trial, events, changes, start=database.clock.now)
    async with trial.sessions() as session:
        await check_empty(session, runs.tables, "crash_flow_everywhere")
    findings: list[str] = []
    for at in range(MOMENTS_MAX):
        replica = KillableReplica(
            at, counts=CommittedWrites(is_write) if commits_only else is_statement
        )
        with without_logs():
            different = await runs.killed(replica)
        if different:
            moment = replica.moment or "not killed at all"
            findings.append("\n    ".join([moment, *different]))
        if replica.moment is None:
            if findings:
                raise CrashError(flow.name, findings, at, advice=_ADVICE)
            return at
    raise PipelineError(f"{flow.name} has more than {MOMENTS_MAX} moments; is there an end to it?")


def is_statement(boundary: Boundary) -> bool:
    """Whether something may be lost there: a statement of the flow, or a COMMIT."""
    return boundary.statement.split(maxsplit=1)[0] not in ("BEGIN", "ROLLBACK", "PRAGMA")


def is_write(statement: str) -> bool:
    return any(word in statement for word in ("INSERT", "UPDATE", "DELETE"))


@dataclass
class _Runs:
    """Restores the rows before each run, and runs it."""

    trial: FlowTrial
    events: Callable[[], Sequence[Any]]
    changes: dict[str, Any]
    start: datetime

    async def killed(self, replica: KillableReplica) -> list[str]:
        """Kill one replica, have another one finish, and return the differences."""
        trial = self.trial
        await self._set_scene()
        life = replica.life(trial.database, self._work, name=trial.flow.name, within_s=RUN_S_MAX)
        try:
            async with life:
                if replica.moment is not None:
                    trial.pass_time(AFTER_DEATH * trial.pipeline().settings.lock_timeout)
                    async with asyncio.timeout(RUN_S_MAX):
                        await self._work(trial.sessions)
                record = await recorded(trial.sessions, trial.flow)
                return record.differences(await trial.reference())
        except (PipelineError, TimeoutError) as error:
            if replica.moment is None:
                raise
            return [str(error) or f"the next replica does not end within {RUN_S_MAX:g} s"]

    @property
    def tables(self) -> list[Table]:
        """All tables of the host, referenced ones first."""
        return self.trial.flow.program.tables.shards.metadata.sorted_tables

    async def _set_scene(self) -> None:
        async with self.trial.sessions.begin() as session:
            await empty(session, self.tables)
        assert self.trial.database.clock is not None
        self.trial.database.clock.set(self.start)
        self.trial.events = list(self.events())
        await self.trial.add_some(self.trial.events)

    async def _work(self, sessions: async_sessionmaker[AsyncSession]) -> None:
        await self.trial.work(sessions, **self.changes)
