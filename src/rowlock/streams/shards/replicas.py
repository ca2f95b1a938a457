"""Which replicas work on a flow, which shards are this one's to claim, and a shard that is held
here: its lease, its state, and what is known of its row.

Each replica has a row and reads those of the others; all of them compute the same assignment from
the same rows (``layout.py``). A row that is out of date delays a handover and breaks nothing:
the holder of the lease works.

A lease says as much as a row that was written just now, so a replica with shards writes its row
seldom. It looks at the others as seldom, as long as each shard is held: how many replicas and
leases there are comes with the looks at the flow.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import and_, case, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Outcome, PipelineItem, database_now
from rowlock.spi import ROWS, database_time_after
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.cut_plan import ShardProgress
from rowlock.streams.cutter import Crowd
from rowlock.streams.flow_view import lease_holds
from rowlock.streams.key_states import ShardCache
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.layout import assigned, check_layout

REPLICAS_MAX = 1000
"""Most replicas of a flow that are told apart."""
PRESENCE_PARTS = 5
"""A replica without shards says so many times within `lock_timeout` that it is there."""
PRESENT_FOR = 3.0
"""A replica that was not seen for so many times the rest between two of its rows is gone."""


def presence(lock_timeout: timedelta) -> tuple[timedelta, timedelta]:
    """Return how often a replica says that it is there, and how long it counts as there then."""
    every = lock_timeout / PRESENCE_PARTS
    return every, every * PRESENT_FOR


class Replicas:
    def __init__(self, program: FlowProgram) -> None:
        self.id: UUID = uuid4()  # of this replica; another one in each life of a pipeline
        # The ranges that this replica is to hold, by the key of the shard's row
        self.mine: dict[int, BucketRange] = {}
        self.wanted = program.shards_at_first  # how many shards there are to be
        self._program = program
        # How long a replica counts as there after it was seen, unless it has leases
        self.present_for = timedelta(seconds=PRESENT_FOR)
        # Called when there are more or fewer replicas, shards or leases than at the last look
        self.on_change: Callable[[], object] = lambda: None
        self._holds_all = False
        self._crowd: Crowd | None = None
        self._name = f"{socket.gethostname()}:{os.getpid()}"[:255]

    async def appear(self, connection: AsyncConnection, *, shards: int) -> None:
        program, table = self._program, self._program.tables.replicas
        own = and_(table.c.flow_id == program.id, table.c.id == self.id)
        seen: dict[str, Any] = {"shards": shards, "seen_at": database_now()}
        if (await connection.execute(update(table).where(own).values(seen))).rowcount:
            return
        # It may be there: an earlier try whose answer was lost may be committed late.
        key = {"flow_id": program.id, "id": self.id}
        of_process = {"name": self._name, "code_version": program.code_version}
        row = {**key, **of_process, **seen, "started_at": database_now()}
        new = ROWS.of(connection).insert_unless_there(table, list(table.primary_key))
        await connection.execute(new.values(row))

    async def disappear(self, connection: AsyncConnection) -> None:
        table = self._program.tables.replicas
        own = (table.c.flow_id == self._program.id, table.c.id == self.id)
        await connection.execute(delete(table).where(*own))
        await self.tell_coordinator(connection)

    async def tell_coordinator(self, connection: AsyncConnection) -> None:
        """Have the coordinator look soon: the number of replicas changed."""
        flows = self._program.tables.flows
        rests = (flows.c.id == self._program.id, flows.c.due_at > database_now())
        await connection.execute(update(flows).where(*rests).values(due_at=database_now()))

    def is_calm(self, held: Collection[Any]) -> bool:
        """Return whether each shard was held at the last look, and this replica holds its own."""
        return self._holds_all and bool(self.mine) and self.mine.keys() <= set(held)

    def saw(self, crowd: Crowd) -> None:
        """Note how many replicas, shards and leases there are by now."""
        if self._crowd is not None and crowd != self._crowd:
            self._crowd = None
            self.on_change()

    async def look(self, connection: AsyncConnection) -> None:
        """Read who is there and who holds what, and find what is this replica's."""
        program, tables = self._program, self._program.tables
        shards = (await connection.execute(_shards(program))).all()
        check_layout(program.name, shards)
        ranges = {BucketRange(row.lo, row.hi): row.id for row in shards}
        holders = {BucketRange(row.lo, row.hi): row.holder and str(row.holder) for row in shards}
        holding = set(holders.values())
        c = tables.replicas.c
        is_recent = c.seen_at > database_time_after(-self.present_for)
        columns = (c.id, c.code_version, c.started_at, is_recent.label("is_recent"))
        rows = select(*columns).where(c.flow_id == program.id)
        latest = rows.order_by(c.seen_at.desc()).limit(REPLICAS_MAX)
        seen = (await connection.execute(latest)).all()
        # Without a row it is about to leave, whatever it holds.
        present = [row for row in seen if row.is_recent or str(row.id) in holding]
        there = {str(row.id) for row in present} | {str(self.id)}
        self.wanted = next((row.wanted for row in shards if row.wanted), len(shards))
        self._holds_all = all(row.is_held for row in shards)
        self._crowd = Crowd(len(seen), len(shards), sum(row.is_held for row in shards))
        newest = _of_newest_version(present)
        by = assigned(holders, there, wanted=self.wanted, newest=newest)
        own = str(self.id)
        self.mine = {ranges[each]: each for each, holder in by.items() if holder == own}


def _of_newest_version(replicas: Sequence[Any]) -> set[str]:
    """Return the ids of replicas with the code of the newest one; none if all have it."""
    if not replicas:
        return set()
    newest = max(replicas, key=lambda each: (each.started_at, each.id))
    found = {str(each.id) for each in replicas if each.code_version == newest.code_version}
    return found if len(found) < len(replicas) else set()


def _shards(program: FlowProgram) -> Any:
    """Return the query for who holds which shard, and how many there are to be."""
    flows, c = program.tables.flows, program.tables.shards.c
    wanted = select(flows.c.shards_wanted).where(flows.c.id == program.id).scalar_subquery()
    is_held = lease_holds(program.tables)
    holder: Any = case((is_held, c.replica), else_=None)
    columns = (c.id, c.lo, c.hi, holder.label("holder"), is_held.label("is_held"))
    return select(*columns, wanted.label("wanted")).where(c.flow_id == program.id)


class StepFailures(NamedTuple):
    """How many attempts at `failed_step` failed, as a shard's row says."""

    failures: int = 0
    failed_step: int | None = None

    def at(self, step: int) -> int:
        """Return how many attempts at `step` failed: those at an earlier step do not count."""
        return self.failures if self.failed_step == step else 0

    def with_failure(self, step: int) -> StepFailures:
        return StepFailures(self.at(step) + 1, step)


@dataclass(slots=True, eq=False)
class OwnShard:
    item: PipelineItem[Any]
    range: BucketRange
    outcome: asyncio.Future[Outcome]  # what `process` of the lease is to return, or raise
    cache: ShardCache
    at: int = 0  # the step that it does next here; as long as it is below `step`, it repeats steps
    # The step before which it stops, with its states written, and is released; None: it goes on
    end: int | None = None
    step: int = 0  # the step that its row says it does next
    version: int = 0  # the step at whose start its states in the database are
    snapshot: int | None = None  # of the older version that is kept; None if there is none
    failures: StepFailures = field(default_factory=StepFailures)
    # Step and name of each stage that it has sent messages to
    sent: set[tuple[int, str]] = field(default_factory=set)
    is_open: bool = False  # all of the above are as its row says; otherwise it has to be read
    doing: object = None  # the steps that are under way
    is_computed: bool = False  # a thread that is not waited for computes them, from `cache`
    state_keys: int = 0  # how many keys have a state in the database, at least
    # How often in a row its next step was not written, since the host had changed rows that it was
    # computed from
    redone: int = 0

    @property
    def is_leaving(self) -> bool:
        """Whether what `process` returns is known already."""
        return self.outcome.done()

    @property
    def has_sent(self) -> bool:
        """Whether messages of the step that it does next are recorded as those of this range."""
        return any(step == self.at for step, _ in self.sent)

    @property
    def progress(self) -> ShardProgress:
        timer_at = None if self.is_computed else self.cache.earliest_timer
        return ShardProgress(self.step, timer_at=timer_at)

    def open(self, row: Any, cache: ShardCache) -> None:
        """Begin anew with what the shard's row says; what it has sent is to be read."""
        self.range = BucketRange(row.lo, row.hi)
        self.step, self.version, self.snapshot = row.step, row.version, row.snapshot
        self.failures = StepFailures(row.failures, row.failed_step)
        self.cache, self.sent = cache, set()
        self.at, self.end = row.version, None
        self.is_open = True

    def drop(self) -> None:
        """Forget what is in memory: whether it is what the database has is unknown."""
        self.is_open = self.is_computed = False
        self.doing = self.end = None

    def leave(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        self.drop()
        if not self.outcome.done():
            self.outcome.set_exception(error)
