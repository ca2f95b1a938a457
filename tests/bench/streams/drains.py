"""How fast a backlog of events is worked off, beside the drivers alone doing the same steps.

Processor time counts first: it hardly moves with what else the machine does.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from measure import Figures, Place, Scale, beside
from meter import Meter
from row_versions import row_versions
from sqlalchemy import text
from streams.driver_steps import work_off_by_driver
from streams.event_host import KEYS, ZIPF, EventHost, account_of, payments_of

from rowlock.streams import Checkpoint

WARM = 0.2
"""This share of the events is worked off before the rest is measured: by then the states are in
memory, and statements are prepared.
"""
STEPS = ((5_000, 200_000), (1_000, 100_000), (100, 20_000), (1, 400))
"""Rows of a step, and events of a round."""
QUICK = 20
"""A quick round has so many times fewer events."""


@dataclass(frozen=True)
class Load:
    """What is worked off.

    Attributes:
        events: how many.
        rows: most of a step.
        keys: of the events.
        zipf: how unevenly events have them.
        options: of the flow.
    """

    events: int
    rows: int
    keys: int = KEYS
    zipf: float | None = ZIPF
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def warm(self) -> int:
        return max(int(self.events * WARM), 1)


@dataclass(frozen=True)
class Drained:
    seconds: float
    client_s: float
    server_s: float
    events: int
    statements: int

    @property
    def cpu_s(self) -> float:
        """Processor time of client and server; of the client alone where there is no server."""
        return self.client_s + (self.server_s if self.server_s == self.server_s else 0.0)

    @property
    def figures(self) -> Figures:
        found = {
            "events/s": self.events / self.seconds,
            "client µs/event": self.client_s / self.events * 1e6,
        }
        if self.server_s == self.server_s:
            found["server µs/event"] = self.server_s / self.events * 1e6
        return found

    @classmethod
    def of(cls, meter: Meter, events: int) -> Drained:
        return cls(meter.seconds, meter.client_s, meter.server_s, events, meter.statements)


async def drain_steps(place: Place, scale: Scale) -> Figures:
    """Return events per second and the cost of an event in steps of several sizes, each beside the
    drivers alone.
    """
    figures: Figures = {}
    for rows, events in STEPS:
        load = Load(events // scale.pick(1, QUICK), max(rows // scale.pick(1, 5), 1))
        figures |= named(f"{load.rows:,}", await compared(place, scale, load))
    return figures


async def drain_keys(place: Place, scale: Scale) -> Figures:
    """Return what an event costs among 10,000 and 1,000,000 keys, all of which have a state
    already, in steps of 1,000 rows.
    """
    figures: Figures = {}
    cpu_s = []
    for keys in (10_000, 1_000_000):
        count = keys // scale.pick(1, QUICK)
        load = Load(scale.pick(50_000, 4_000), scale.pick(1_000, 200), count, None)
        ours, limit = await drained_beside(place, scale, load, has_states=True)
        figures |= named(f"{keys:,} keys", _beside(ours, limit))
        cpu_s.append((ours.cpu_s, limit.cpu_s))
    few, many = cpu_s
    ratio = {"many / few keys, by CPU": many[0] / few[0]}
    return figures | ratio | {"… of the drivers alone": many[1] / few[1]}


async def drain_shards(place: Place, scale: Scale) -> Figures:
    """Return what an event costs in steps of 5,000 rows, with 1 to 1,024 shards in one replica."""
    figures: Figures = {}
    found = {}
    for shards in (1, 16, 64, 1024):
        load = Load(
            scale.pick(100_000, 8_000), scale.pick(5_000, 2_000), options={"shards": shards}
        )
        found[shards] = one = await drained(place, load)
        figures |= named(f"{shards:,} shards", one.figures)
    for shards in (64, 1024):
        figures[f"{shards:,} / 1 shard, by CPU"] = found[shards].cpu_s / found[1].cpu_s
        figures[f"{shards:,} / 1 shard, by the clock"] = found[shards].seconds / found[1].seconds
    return figures


async def drain_modes(place: Place, scale: Scale) -> Figures:
    """Return what an event costs where states are written with every step, and every 10 and 50
    steps, in steps of 1,000 rows.
    """
    figures: Figures = {}
    found = {}
    for steps in (1, 10, 50):
        options = {"checkpoint": Checkpoint(steps=steps)}
        load = Load(scale.pick(100_000, 5_000), scale.pick(1_000, 200), options=options)
        found[steps] = one = await drained(place, load)
        figures |= named(f"every {steps}" if steps > 1 else "every step", one.figures)
    for steps in (10, 50):
        figures[f"every {steps} / every step, by CPU"] = found[steps].cpu_s / found[1].cpu_s
    return figures


async def drain_tables(place: Place, scale: Scale) -> Figures:
    """Return what an event of a host's table costs, in steps of 1,000 rows; beside one of a log."""
    kept: dict[bool, Drained] = {}

    async def of(*, is_table: bool) -> Figures:
        options = {"is_table": is_table}
        load = Load(scale.pick(100_000, 5_000), scale.pick(1_000, 200), options=options)
        kept[is_table] = await drained(place, load)
        return named("table" if is_table else "log", kept[is_table].figures)

    log, table = partial(of, is_table=False), partial(of, is_table=True)
    first, second = await beside(log, table, limit_first=scale.limit_first)
    return first | second | {"table / log, by CPU": kept[True].cpu_s / kept[False].cpu_s}


async def drain_versions(place: Place, scale: Scale) -> Figures:
    """Return what an event costs where a snapshot is read meanwhile, so that states have two
    versions, in steps of 1,000 rows; beside one version.
    """
    load = Load(scale.pick(100_000, 5_000), scale.pick(1_000, 200))
    kept: dict[bool, Drained] = {}

    async def one() -> Figures:
        kept[False] = await drained(place, load)
        return named("one version", kept[False].figures)

    async def two() -> Figures:
        kept[True] = await drained(place, load, has_snapshot=True)
        return named("two versions", kept[True].figures)

    first, second = await beside(one, two, limit_first=scale.limit_first)
    ratios = {
        "two / one version, by CPU": kept[True].cpu_s / kept[False].cpu_s,
        "two / one version, by the clock": kept[True].seconds / kept[False].seconds,
    }
    return first | second | ratios


async def state_updates(place: Place, scale: Scale) -> Figures:
    """Return what the table of states is like after a million updates of 10,000 keys."""
    updates, keys = scale.pick(1_000_000, 10_000), scale.pick(10_000, 1_000)
    async with EventHost.opened(place, step_rows_max=keys) as host:
        async with host.running():
            await add_states(host, keys)
            before = await _table_mb(host)
            # Each step has each key once.
            step = payments_of(keys, keys=keys, zipf=None)
            each = [replace(one, account=account_of(n)) for n, one in enumerate(step)]
            for _ in range(updates // keys):
                await host.append(each)
                await host.wait_until_done()
        after = await _table_mb(host)
    versions = await row_versions(place, "rowlock_stream_state", rows=updates)
    return {"table MB, before": before, "table MB, after": after, **versions}


async def _table_mb(host: EventHost) -> float:
    """Return the size of the table of states with its indexes; of the file on SQLite."""
    statement = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    if host.is_postgresql:
        statement = "SELECT pg_total_relation_size('rowlock_stream_state')"
    async with host.engine.connect() as connection:
        return float((await connection.execute(text(statement))).scalar_one()) / 1e6


async def compared(place: Place, scale: Scale, load: Load) -> Figures:
    """Return the figures of a drain beside those of the drivers alone."""
    return _beside(*await drained_beside(place, scale, load))


async def drained_beside(
    place: Place, scale: Scale, load: Load, *, has_states: bool = False
) -> tuple[Drained, Drained]:
    """Return what our drain took, and what that of the drivers alone."""
    kept: dict[str, Drained] = {}

    async def ours() -> Figures:
        kept["ours"] = await drained(place, load, has_states=has_states)
        return {}

    async def limit() -> Figures:
        kept["limit"] = await drained_by_driver(place, load, has_states=has_states)
        return {}

    await beside(limit, ours, limit_first=scale.limit_first)
    return kept["ours"], kept["limit"]


async def drained(
    place: Place, load: Load, *, has_states: bool = False, has_snapshot: bool = False
) -> Drained:
    """Work off a backlog in one replica, while a snapshot is kept if that is asked for."""
    async with EventHost.opened(place, step_rows_max=load.rows, **load.options) as host:
        meter = await Meter.on(host.engine)
        payments = payments_of(load.events, keys=load.keys, zipf=load.zipf)
        async with host.running():
            if has_states:
                await add_states(host, load.keys)
            await host.append_behind_pause(payments[: load.warm])
            await host.work_off(meter)
            async with host.flow.snapshot(host.sessions) if has_snapshot else nullcontext():
                await host.append_behind_pause(payments[load.warm :])
                await host.work_off(meter)
    return Drained.of(meter, load.events - load.warm)


async def drained_by_driver(place: Place, load: Load, *, has_states: bool = False) -> Drained:
    async with EventHost.opened(place, step_rows_max=load.rows, **load.options) as host:
        meter = await Meter.on(host.engine)
        async with host.running():
            if has_states:
                await add_states(host, load.keys)
        await host.append_behind_pause(payments_of(load.events, keys=load.keys, zipf=load.zipf))
        await host.engine.dispose()
        count = await work_off_by_driver(host, meter, warm=load.warm, rows=load.rows)
    return Drained.of(meter, count)


async def add_states(host: EventHost, keys: int) -> None:
    """Give each key a state, as if it had had an event; the planner knows."""
    numbers = "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < :last)"
    # SQLite has no hash that gives a bucket; which one it is does not matter to what is measured.
    insert = (
        "INSERT INTO rowlock_stream_state (flow_id, name, key, bucket, version, value)"
        " {} SELECT (SELECT id FROM rowlock_stream_flows), 'add_up',"
        " 'account-' || n, 0, 0, '1' FROM n ON CONFLICT DO NOTHING"
    )
    statement = insert.format(numbers)
    if not host.is_postgresql:
        # SQLite takes ON CONFLICT behind a SELECT for a join, unless that has a WHERE.
        statement = statement.replace("FROM n ON", "FROM n WHERE true ON")
    async with host.engine.begin() as connection:
        await connection.execute(text(statement), {"last": keys - 1})


def _beside(ours: Drained, limit: Drained) -> Figures:
    compared = {
        "of the limit, by CPU": limit.cpu_s / limit.events / (ours.cpu_s / ours.events),
        "of the limit, by the clock": (ours.events / ours.seconds) / (limit.events / limit.seconds),
    }
    theirs = {f"limit {name}": value for name, value in limit.figures.items()}
    return ours.figures | compared | theirs


def named(prefix: str, figures: Figures) -> Figures:
    """Return figures whose names begin with what they are about."""
    return {f"{prefix}: {name}": value for name, value in figures.items()}
