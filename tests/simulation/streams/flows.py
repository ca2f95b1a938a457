"""Flows in replicas that die, freeze and lose their database, while events come, people command,
and a consumer books what comes of them.

The one idea: whatever happened, everything that was written is what one loop over the recorded
steps writes. What else is compared is counted by plain SQL that knows nothing of steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.exc import DBAPIError

from rowlock.errors import PipelineError
from rowlock.stream_errors import CursorMoved
from rowlock.streams import Appended, Checkpoint, DynamicShards
from rowlock.testing.streams import FlowRecord

from ...simulator.flows import FlowScenario
from ...simulator.scenario import World
from .further import (
    SnapshotReader,
    check_balances,
    declare_fold,
    declare_over_results,
    discard,
    expire,
    give,
)
from .host import Booking, Moved, Payment, Used, declare
from .layouts import Layouts, noted_in
from .reached import REACHED

TROUBLE: Final = (DBAPIError, OSError, TimeoutError)
"""What the database does to a service."""
RESTS_S: Final = (0, 0.02, 0.3, 1, 3)
GO_ON_S: Final = 4.0
"""How long services go on when the faults are over. **Unit** virtual seconds."""
PAYMENTS_MAX: Final = 30
CONSUMER: Final = "books"

SETTINGS: Final[dict[str, Any]] = {
    "workers_num": 16,
    "lock_timeout": 6,
    "heartbeat_trigger": 3,
    "heartbeat_interval": 0.4,
    "renew_timeout": 1,
    "fetch_delays": (0.5, 2),
    "database_timeout": 3,
    "cancel_grace": 1,
    "retry_delay": 0.2,
    "retry_delay_max": 2,
    "orphaned_after": 15,
    "failures_max": 6,
}


class HostBrokenError(Exception):
    """The code of the host fails, as it may while the faults last."""


KEPT: Final = (
    "rowlock_stream_steps",
    "rowlock_stream_parts",
    "rowlock_stream_log",
    "rowlock_stream_outputs",
    "rowlock_stream_exchange",
)
"""Tables whose rows may expire: what they had is kept beside them, for the comparison."""


class Flows(FlowScenario):
    """A flow over a table and a log, and perhaps one over its results, or one that folds."""

    replicas_num = 2
    schema = tuple(
        statement
        for table in KEPT
        for statement in (
            f"CREATE TABLE kept_{table} AS SELECT * FROM {table}",
            f"CREATE TRIGGER keep_{table} AFTER INSERT ON {table} BEGIN INSERT INTO kept_{table}"
            f" SELECT * FROM {table} WHERE rowid = NEW.rowid; END",
        )
    )

    def __init__(self, world: World) -> None:
        random = world.random
        self.breaks = random.choice((0, 0, 0, 0, 0.1, 0.8))
        self.keeps_long = random.random() < 0.5
        self.host = declare(
            self._break_perhaps,
            stages=random.choice((1, 1, 2, 2, 3)),
            are_batches=[random.random() < 0.3 for _ in range(3)],
            keep=1000.0 if self.keeps_long else 0.3,
            **drawn_settings(random),
        )
        # Few shards: with round trips of 25 ms, one writer at a time has enough to do.
        own = {"keep": 1000.0 if self.keeps_long else 0.3, "shards": random.choice((1, 2))}
        self.totals = self.balances = None
        match random.choice((None, None, "totals", "balances")):
            case "totals":
                self.totals = declare_over_results(self.host, **{**drawn_settings(random), **own})
            case "balances":
                own["checkpoint"] = Checkpoint()
                self.balances = declare_fold(self.host, **{**drawn_settings(random), **own})
        further = [one for one in (self.totals, self.balances) if one is not None]
        super().__init__(world, [self.host.flow, *further])
        self.snapshots = SnapshotReader(self.host.flow)
        self.consumers = random.randint(0, 2)
        self.reached: set[str] = set()
        self.keys = [f"a{number}" for number in range(random.randint(1, 12))]
        self._layouts = Layouts()
        self.sent: dict[tuple[str, int], list[Used]] = {}
        self.acknowledged: dict[tuple[str, int], Appended] = {}

    def rows(self) -> Iterable[object]:
        random = self.world.random
        return [
            Payment(account=random.choice(self.keys), cents=random.randint(1, 20))
            for _ in range(random.randint(0, PAYMENTS_MAX))
        ]

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Meters, consumers, people who command, and those who have all go on in the end."""
        random = self.world.random
        return [
            *[self.send] * random.randint(0, 2),
            *[self.consume] * self.consumers,
            *[self.command] * random.randint(0, 1),
            *[self.read_snapshots] * random.choice((0, 0, 1, 2)),
            *[self.tidy] * random.randint(0, 1),
            *[self.give] * (self.balances is not None),
            *[self.recover] * 2,
        ]

    async def send(self) -> None:
        random = self.world.random
        process = self.world.process
        assert process is not None
        meter = process.name
        for seq in range(random.randint(1, 8)):
            await self.sleep(random.choice(RESTS_S))
            events = [
                Used(random.choice(self.keys), random.randint(1, 9))
                for _ in range(random.randint(0, 5))
            ]
            self.sent[meter, seq] = events
            if not self.keeps_long:
                # Whose numbers may have expired does not send twice.
                with suppress(*TROUBLE):
                    await self._append(meter, seq)
                continue
            for _ in range(random.choice((1, 1, 2))):
                await self._until_done(lambda seq=seq: self._append(meter, seq))  # type: ignore[misc]

    async def _append(self, meter: str, seq: int) -> None:
        async with self.world.session_factory() as session, session.begin():
            told = await self.host.usage.append(
                session, self.sent[meter, seq], producer=meter, seq=seq
            )
        before = self.acknowledged.setdefault((meter, seq), told)
        assert (told.first, told.last) == (before.first, before.last), f"{told} after {before}"

    async def consume(self) -> None:
        random = self.world.random

        async def book() -> None:
            results = self.host.moved.consume(
                self.world.session_factory, consumer=CONSUMER, follow=random.random() < 0.5
            )
            with suppress(TimeoutError, CursorMoved):
                async with asyncio.timeout(random.choice((0.5, 3))):
                    async for result in results:
                        await self._book(result)

        while not self._is_over():
            await self._until_done(book)
            await self.sleep(random.choice(RESTS_S))

    async def _book(self, result: Any) -> None:
        async with self.world.session_factory() as session, session.begin():
            session.add_all(
                Booking(step=result.step, account=one.account, cents=one.cents, units=one.units)
                for one in result.values
            )
            await result.ack(session)

    async def command(self) -> None:
        random = self.world.random
        flow = random.choice(self.flows)
        shards = random.choice((1, 2, 4, 8))
        commands: list[Callable[[Any], Awaitable[Any]]] = [
            *(flow.pause, flow.resume, flow.stop, flow.start, flow.checkpoint, flow.unpark)
        ]
        if not isinstance(flow.program.shards, DynamicShards):
            commands.append(lambda session: flow.reshard(session, shards))
        for _ in range(random.randint(1, 5)):
            await self.sleep(random.choice(RESTS_S))
            with suppress(*TROUBLE, PipelineError):
                await self._give(random.choice(commands))

    async def read_snapshots(self) -> None:
        random = self.world.random
        for _ in range(random.randint(1, 2)):
            await self.sleep(random.choice(RESTS_S))
            with suppress(*TROUBLE, PipelineError):
                await self.snapshots.read(self.world.session_factory)

    async def tidy(self) -> None:
        random, sessions = self.world.random, self.world.session_factory
        for _ in range(random.randint(2, 6)):
            await self.sleep(random.choice(RESTS_S))
            for output in (self.host.moved, self.host.closed, self.host.summed):
                # A reader that is about to begin is not known yet.
                is_read = self.consumers or self.totals is not None
                if output is not self.host.moved or not is_read:
                    with suppress(*TROUBLE, PipelineError):
                        await discard(sessions, output)
            for flow in self.flows:
                with suppress(*TROUBLE, PipelineError):
                    await expire(sessions, flow)

    async def give(self) -> None:
        random = self.world.random
        for _ in range(random.randint(1, 6)):
            await self.sleep(random.choice(RESTS_S))
            with suppress(*TROUBLE):
                await give(self.world.session_factory, random.choice(self.keys), 1000)

    async def recover(self) -> None:
        while not self.world.is_calm:
            await self.sleep(0.5)
        for command in [act for flow in self.flows for act in (flow.start, flow.unpark)]:
            with suppress(PipelineError):
                await self._until_done(lambda command=command: self._give(command))  # type: ignore[misc]

    async def _give(self, command: Callable[[Any], Awaitable[Any]]) -> None:
        async with self.world.session_factory() as session, session.begin():
            await command(session)

    async def _until_done(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await act()
            except TROUBLE:
                await self.sleep(0.2)

    def _is_over(self) -> bool:
        if not self.world.is_calm:
            return False
        loop = asyncio.get_running_loop()
        self._ends_at = getattr(self, "_ends_at", loop.time() + GO_ON_S)
        return loop.time() > self._ends_at

    def _break_perhaps(self, key: str) -> None:
        if not self.world.is_calm and self.world.random.random() < self.breaks:
            raise HostBrokenError(key)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that has all rows again that have expired, until it is closed."""
        with self.world.copying() as connection:
            for table in KEPT:
                connection.exec_driver_sql(
                    f"INSERT OR IGNORE INTO {table} SELECT * FROM kept_{table}"
                )
            connection.execute(delete(self.host.streams.tables.appends))
            yield connection

    def always(self) -> None:
        """Each bucket is in one shard; no shard goes back, is ahead of the cuts, or has states of
        steps that it has not done.
        """
        self.reached |= self._layouts.look(self.world.file)

    def check(self) -> None:
        records = self.records(self.host.flow)
        if records is None:
            return
        recorded, expected = records
        found = recorded.differences(expected)
        assert not found, "; ".join(found)
        self._check_bookings(expected)
        self._check_counts(recorded)
        self._check_log()
        self._check_further()
        self._note_reached()

    def _check_further(self) -> None:
        if self.totals is not None:
            found = self.differences(self.totals)
            assert not found, f"totals: {'; '.join(found)}"
        with self.reading() as connection:
            self.snapshots.check(connection)
            if self.balances is not None and check_balances(connection, self.balances):
                self.reached.add("host writes a folded row")

    def _note_reached(self) -> None:
        program = self.host.flow.program
        is_there = {
            ("one stage", "two stages", "three stages")[len(program.stages) - 1]: True,
            "checkpoint every step": program.checkpoint.steps == 1,
            "checkpoint every 7 steps": program.checkpoint.steps == 7,
            "dynamic shards": isinstance(program.shards, DynamicShards),
            "snapshot read": bool(self.snapshots.found),
            "results consumed": bool(self.world.read(Booking)),
            "flow over results": self.totals is not None,
            "fold": self.balances is not None,
            **noted_in(self.world.file),
        }
        for name in sorted({*self.reached, *(name for name, found in is_there.items() if found)}):
            self.world.note(f"{REACHED}{name}")

    def _check_bookings(self, expected: FlowRecord) -> None:
        cursors = self.host.flow.program.tables.cursors
        with self.world.reading() as connection:
            cursor = connection.scalar(select(cursors.c.step).where(cursors.c.consumer == CONSUMER))
        upto = -1 if cursor is None else cursor
        booked = Counter(
            (one.step, one.account, one.cents, one.units) for one in self.world.read(Booking)
        )
        moved: list[tuple[int, Moved]] = [
            (one.step, one.value) for one in expected.results["moved"] if one.step <= upto
        ]
        wanted = Counter((step, one.account, one.cents, one.units) for step, one in moved)
        assert booked == wanted, f"booked {booked - wanted} too often, and not {wanted - booked}"

    def _check_counts(self, recorded: FlowRecord) -> None:
        """Every row that is cut was counted once, and all are cut where nothing holds the flow."""
        tables = self.host.flow.program.tables
        steps, parts, log = tables.steps, tables.parts, tables.log
        below = recorded.next_step
        with self.reading() as connection:
            own = self.host.flow.program.id
            state = connection.scalar(select(tables.flows.c.state).where(tables.flows.c.id == own))
            of_last = (steps.c.flow_id == own, steps.c.step == below - 1)
            upto = connection.scalars(select(steps.c.upto).where(*of_last)).one()
            of_done = (parts.c.flow_id == own, parts.c.step < below)
            counted = connection.scalar(select(func.sum(parts.c.rows)).where(*of_done))
            used = connection.scalars(select(log.c.position)).all()
        paid = self.world.read(Payment)
        done = [one for one in paid if one.position <= upto["payments"]]
        used_and_done = [position for position in used if position <= upto["usage"]]
        rows = len(done) + len(used_and_done)
        assert (counted or 0) == rows, f"{counted} rows were counted of {rows}"
        if state == "running":
            assert len(done) == len(paid), "payments are left"
            assert len(used_and_done) == len(used), "usage is left"
        moved, cents = Counter[str](), Counter[str]()
        for result in recorded.values("moved"):
            moved[result.account] += result.cents
        for payment in done:
            cents[payment.account] += payment.cents
        assert +moved == +cents, f"{moved} was moved of {cents}"

    def _check_log(self) -> None:
        log = self.host.flow.program.tables.log
        with self.reading() as connection:
            there = {row.position: row for row in connection.execute(select(log)).all()}
        for (meter, seq), told in self.acknowledged.items():
            events = self.sent[meter, seq]
            own = [there[position] for position in range(told.first, told.last + 1) if events]
            assert len(own) == len(events), f"{meter} sent {len(events)}, and {len(own)} are there"
        most = sum(map(len, self.sent.values()))
        assert len(there) <= most, f"{len(there)} events are there of {most} that were sent"


def drawn_settings(random: Random) -> dict[str, Any]:
    shards: int | DynamicShards = random.choice((1, 2, 4, 8))
    if random.random() < 0.15:
        shards = DynamicShards(random.choice((0.25, 0.9)))
    steps = random.choice((1, 1, 7))
    seconds = random.choice((None, 2.0)) if steps > 1 else None
    return {
        **SETTINGS,
        "shards": shards,
        "checkpoint": Checkpoint(steps, seconds),
        "poll_interval": random.choice((1, 5)),
        "step_rows_max": random.choice((2, 5, 20)),
        "steps_ahead_max": random.choice((2, 64)),
        "cached_keys_max": random.choice((1, 3, 100)),
    }
