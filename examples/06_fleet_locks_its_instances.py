"""A fleet wants all its instances at once, while each of them is busy all the time.

The one idea: who needs related rows locks all of them or none, and who gets none steps back.
`Reset` keeps the fleet's owner in its row; that is its intent, and the pipeline of the instances
respects it: an instance that becomes free is left alone until the fleet has come back for all of
them.

Run it: ``python examples/06_fleet_locks_its_instances.py``. Its tables are those of
``examples/hosting/tables.py``. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hosting.tables import Base, Fleet, Instance
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    Event,
    Pipeline,
    PipelineItem,
    PipelineManager,
    RelatedLockUnavailable,
    events,
    hint_after_commit,
    subscribe,
)

PROBE_S = 0.1
LONG_PROBE_S = 0.6
"""How long the first instance's first probe takes: the fleet comes while it runs. **Unit**
seconds.
"""
WAIT_S_MAX = 20.0
Sessions = async_sessionmaker[AsyncSession]


class InstancePipeline(Pipeline[Instance]):
    """Probes each instance, again and again: with as many workers as instances, one is hardly
    ever free.
    """

    model = Instance
    workers_num = 4
    min_processing_interval = 0
    fetch_delays = (0.02,)

    def __init__(self) -> None:
        super().__init__()
        self.long_probe_runs = asyncio.Event()

    def ready(self) -> ColumnElement[bool]:
        """Whatever is up is probed."""
        return Instance.status == "up"

    async def process(self, item: PipelineItem[Instance]) -> Apply:
        """Probe; its count is all that it writes, so what the fleet has written stands."""
        is_long = item.row.name == "a" and item.row.probes == 0
        if is_long:
            self.long_probe_runs.set()
        await asyncio.sleep(LONG_PROBE_S if is_long else PROBE_S)
        return Apply({"probes": item.row.probes + 1})


class FleetPipeline(Pipeline[Fleet]):
    """Packs what runs in a fleet onto as few instances as will do."""

    model = Fleet
    locks = (Instance,)  # checked for circles, and respected by InstancePipeline
    workers_num = 1
    fetch_delays = (0.1,)
    retry_delay = 0.3  # short, so that this example is; the default is a second

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    def ready(self) -> ColumnElement[bool]:
        """Scattered fleets want to be packed."""
        return Fleet.status == "scattered"

    async def process(self, item: PipelineItem[Fleet]) -> Apply:
        """Lock every instance of the fleet, move what runs, and write all rows in one
        transaction.
        """
        try:
            instances = await item.lock_related(Instance, Instance.fleet_id == item.id)
        except RelatedLockUnavailable as refused:
            self.refusals += 1
            print(
                f"fleet: {refused.available} of {refused.wanted} instances are free, so it takes"
                " none"
            )
            raise  # becomes Reset()
        print(f"fleet: has all {len(instances)} instances, after {self.refusals} refusals")
        packed = pack(instances)
        await asyncio.sleep(0.1)  # the moves take their time; nobody else touches these rows
        return Apply(
            {"status": "packed"},
            related={instance: {"cpus_used": packed[instance]} for instance in instances},
        )


def pack(instances: list[Instance]) -> dict[Instance, int]:
    """Return how many processors are to be used on each: the first ones full, the last ones
    empty.
    """
    left, packed = sum(instance.cpus_used for instance in instances), {}
    for instance in instances:
        packed[instance] = min(left, instance.cpus)
        left -= packed[instance]
    return packed


async def look_at_fleet(sessions: Sessions) -> str:
    """Say what is written in the fleet's row."""
    async with sessions() as session:
        fleet = (await session.scalars(select(Fleet))).one()
    return (
        f"{fleet.status}, owner {fleet.lock_owner},"
        f" {'leased' if fleet.lock_token else 'not leased'}"
    )


async def show_instances(sessions: Sessions) -> None:
    """Print what runs where."""
    async with sessions() as session:
        instances = await session.scalars(select(Instance).order_by(Instance.name))
        print(
            "instances:", ", ".join(f"{one.name} {one.cpus_used}/{one.cpus}" for one in instances)
        )


async def wait_for_more_probes(sessions: Sessions) -> None:
    """Return once every instance has been probed again."""
    async with sessions() as session:
        before = await session.scalar(select(func.max(Instance.probes))) or 0
    while True:
        async with sessions() as session:
            if (await session.scalar(select(func.min(Instance.probes))) or 0) > before:
                return
        await asyncio.sleep(PROBE_S)


async def main(folder: Path) -> None:
    """Run a host in which a busy fleet is packed."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions.begin() as session:
        session.add(Fleet(id=1, name="main", status="settled"))
        session.add_all(Instance(name=name, fleet_id=1, cpus_used=4) for name in "abcd")
    await show_instances(sessions)

    stepped_back, packed = asyncio.Event(), asyncio.Event()

    def listen(event: Event) -> None:
        match event:
            case events.ItemApplied(pipeline="FleetPipeline", outcome="Reset"):
                stepped_back.set()
            case events.ItemApplied(pipeline="FleetPipeline", outcome="Apply"):
                packed.set()

    unsubscribe = subscribe(listen)
    probing = InstancePipeline()
    async with asyncio.timeout(WAIT_S_MAX), PipelineManager(sessions, [probing, FleetPipeline()]):
        await probing.long_probe_runs.wait()
        async with sessions.begin() as session:
            (await session.get_one(Fleet, 1)).status = "scattered"
            hint_after_commit(session, Fleet)
        await stepped_back.wait()
        print(f"the fleet's row: {await look_at_fleet(sessions)}")
        await packed.wait()
        print(f"the fleet's row: {await look_at_fleet(sessions)}")
        await wait_for_more_probes(sessions)
        print("every instance is free and is probed again")
    unsubscribe()
    await show_instances(sessions)
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
