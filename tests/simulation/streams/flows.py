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
from rowlock.streams.computing.buckets import BucketRange, merged
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.testing.simulation import World
from rowlock.testing.streams import FlowRecord, FlowScenario

from .host import Booking, Moved, Payment, Used, declare

SHARDS: Final = (
    "SELECT lo, hi, step, version, next_step FROM rowlock_stream_shards AS shards"
    " JOIN rowlock_stream_flows AS flows ON flows.id = flow_id"
)
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


KEPT: Final = ("rowlock_stream_steps", "rowlock_stream_parts", "rowlock_stream_log")
"""Tables whose rows may expire: what they had is kept beside them, for the comparison."""


class Flows(FlowScenario):
    """One flow over a table and a log."""

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
        """Draw what the flow is like, and what comes."""
        random = world.random
        self.breaks_often = random.random() < 0.2
        self.keeps_long = random.random() < 0.5
        self.host = declare(
            self._break_perhaps,
            stages=random.choice((1, 1, 2, 3)),
            are_batches=[random.random() < 0.3 for _ in range(3)],
            keep=1000.0 if self.keeps_long else 0.3,
            **drawn_settings(random),
        )
        super().__init__(world, [self.host.flow])
        self.keys = [f"a{number}" for number in range(random.randint(1, 12))]
        self._done: dict[BucketRange, int] = {}
        self.sent: dict[tuple[str, int], list[Used]] = {}
        self.acknowledged: dict[tuple[str, int], Appended] = {}

    def rows(self) -> Iterable[object]:
        """Some payments."""
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
            *[self.consume] * random.randint(0, 2),
            *[self.command] * random.randint(0, 1),
            *[self.recover] * 2,
        ]

    async def send(self) -> None:
        """Be a meter: send each batch until it is acknowledged, and some again."""
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
        """Book what the flow has moved, each step once."""
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
        """Be a person who wants something of the flow now and then."""
        random, flow = self.world.random, self.host.flow
        shards = random.choice((1, 2, 4, 8))
        commands: list[Callable[[Any], Awaitable[Any]]] = [
            *(flow.pause, flow.resume, flow.stop, flow.start, flow.checkpoint, flow.unpark),
        ]
        if not isinstance(flow.program.shards, DynamicShards):
            commands.append(lambda session: flow.reshard(session, shards))
        for _ in range(random.randint(1, 5)):
            await self.sleep(random.choice(RESTS_S))
            with suppress(*TROUBLE, PipelineError):
                await self._give(random.choice(commands))

    async def recover(self) -> None:
        """Have the flow go on when the faults are over."""
        while not self.world.is_calm:
            await self.sleep(0.5)
        for command in (self.host.flow.start, self.host.flow.unpark):
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
        if self.breaks_often and not self.world.is_calm and self.world.random.random() < 0.1:
            raise HostBrokenError(key)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that has all rows again that have expired, until it is closed."""
        with super().reading() as connection:
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
        found = self.world.file.execute(SHARDS).fetchall()
        if not found:
            return
        done = {}
        for lo, hi, step, version, next_step in found:
            assert version <= step <= next_step, f"{lo}..{hi}: {version}, {step}, {next_step}"
            done[BucketRange(lo, hi)] = step
        assert merged(done) == [(0, BUCKETS)], f"buckets are missing: {sorted(done)}"
        assert sum(each.width for each in done) == BUCKETS, f"buckets are twice: {sorted(done)}"
        for each, before in self._done.items():
            now = min(step for other, step in done.items() if each.lo in other or other.lo in each)
            assert now >= before, f"the shard {each} went back from {before} to {now}"
        self._done = done

    def check(self) -> None:
        """Compare everything with one loop over the steps, and with what was sent."""
        records = self.records(self.host.flow)
        if records is None:
            return
        recorded, expected = records
        found = recorded.differences(expected)
        assert not found, "; ".join(found)
        self._check_bookings(expected)
        self._check_counts(recorded)
        self._check_log()

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
            state = connection.scalar(select(tables.flows.c.state))
            upto = connection.scalars(select(steps.c.upto).where(steps.c.step == below - 1)).one()
            counted = connection.scalar(select(func.sum(parts.c.rows)).where(parts.c.step < below))
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
        """What was acknowledged is there, and nothing is there twice."""
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
    """Draw how a flow is declared."""
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
