"""Rows that stay leased while all is well: a simulation takes them for settled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from contextvars import Context
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import ColumnElement, create_engine, false
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem

from ..lengths import at_length
from .faults.fault_kinds import Fault
from .quiescence import Quiescence
from .scenario import Scenario, World
from .simulation import Simulation, SimulationReport


class Base(DeclarativeBase):
    """The mapped classes."""


class Part(LockColumns, Base):
    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(primary_key=True)
    steps: Mapped[int] = mapped_column(default=0)


class PartPipeline(Pipeline[Part]):
    model = Part
    process_timeout = None
    min_processing_interval = 0.5
    lock_timeout = 6
    heartbeat_trigger = 3
    steps_max = 5

    def ready(self) -> ColumnElement[bool]:
        return Part.id > 0

    def unsettled(self) -> ColumnElement[bool]:
        return Part.steps < self.steps_max

    async def process(self, item: PipelineItem[Part]) -> Outcome:
        while not item.stop_requested:
            async with item.session() as session, session.begin():
                part = await item.guard(session)
                part.steps = min(part.steps + 1, self.steps_max)
            await asyncio.sleep(0.3)
        return Apply()


class Kept(Scenario):
    faults = (Fault.KILL, Fault.FREEZE, Fault.SHUT_DOWN, Fault.OUTAGE)
    keeps_leases = (Part,)
    settle_within = timedelta(minutes=2)

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        return [PartPipeline()]

    def rows(self) -> Iterable[object]:
        return [Part(id=number) for number in (1, 2, 3)]

    def check(self) -> None:
        assert {part.steps for part in self.world.read(Part)} == {PartPipeline.steps_max}


class Ending(PartPipeline):
    """Claims nothing any more once it is over."""

    is_over = False

    def ready(self) -> ColumnElement[bool]:
        return false() if self.is_over else super().ready()


class FrozenInTheEnd(Kept):
    """Its replica stands still for longer than its leases, just before it is shut down."""

    faults = ()
    replicas_num = 1

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        """One that does not claim again what it has lost."""
        return [Ending()]

    def hint(self, pipeline: Any) -> None:
        pipeline.is_over = True
        process = self.world.process
        assert process is not None
        process.freeze()
        # From outside of it, where nothing is frozen.
        asyncio.get_running_loop().call_later(8, process.thaw, context=Context())

    def looks(self, pipeline: Pipeline[Any]) -> Sequence[float]:
        return (asyncio.get_running_loop().time(),)


class Unaware(PartPipeline):
    unsettled = None  # type: ignore[assignment]


class NotKept(Kept):
    """Does not say that its rows stay leased."""

    faults = ()
    keeps_leases = ()
    settle_within = timedelta(seconds=8)


def reports(scenario: type[Scenario], seeds: range) -> list[SimulationReport]:
    with Simulation(scenario) as simulation:
        return list(simulation.run_all(seeds))


def test_rows_that_stay_leased_settle() -> None:
    """Work without an end could not be simulated: its rows would be waited for as unfinished."""
    found = reports(Kept, range(1, at_length(3, 7)))
    assert [str(report) for report in found if not report.is_good] == []


def test_a_lease_that_is_lost_in_the_end_is_no_fault() -> None:
    """A run would fail because a replica that was shut down could not release what it had lost."""
    with Simulation(FrozenInTheEnd) as simulation:
        report = simulation.run(1)
    assert any("LeaseExpired" in entry.text for entry in report.entries)
    assert report.wrongs == []


def test_other_rows_must_be_free() -> None:
    """A row that is held for ever would pass in every scenario."""
    [report] = reports(NotKept, range(1, 2))
    wrong, *_ = report.wrongs
    assert "has not settled 8 s after the faults: leased by PartPipeline" in wrong.text


NOW = datetime(2031, 5, 4, tzinfo=UTC)
HELD = {"lock_token": uuid.UUID(int=1), "lock_owner": "PartPipeline"}


@pytest.mark.parametrize("pipeline", [PartPipeline, Unaware])
@pytest.mark.parametrize(
    ("columns", "matter"),
    [
        ({}, "still wants work"),
        ({**HELD, "lock_expires_at": NOW + timedelta(seconds=1)}, None),
        ({**HELD, "lock_expires_at": NOW}, "still wants work and leased by PartPipeline"),
    ],
)
def test_a_row_without_a_living_holder_has_not_settled(
    pipeline: type[PartPipeline], columns: dict[str, Any], matter: str | None
) -> None:
    """A run would end while the rows of a dead replica wait for a holder."""
    assert left(pipeline(), Part(id=1, steps=5, **columns)) == matter


def test_a_held_row_that_wants_more_has_not_settled() -> None:
    """A run would end in the middle of the work."""
    held = {**HELD, "lock_expires_at": NOW + timedelta(seconds=1)}
    assert left(PartPipeline(), Part(id=1, steps=4, **held)) == (
        "still wants work and leased by PartPipeline"
    )


HELD_NOW = {**HELD, "lock_expires_at": NOW + timedelta(seconds=1)}


def test_a_row_that_its_holder_has_lost_has_not_settled() -> None:
    """A run would end while a row is leased that nobody works on."""
    part = {"id": 1, "steps": 5, **HELD_NOW}
    assert left(PartPipeline(), Part(**part), held={("parts", "1")}) is None
    told = left(PartPipeline(), Part(**part), held=set())
    assert told == "leased by PartPipeline, which has lost it"


def test_each_replica_is_asked() -> None:
    """A run would end while one of several replicas has something to do."""

    # Of the same name, as in another replica.
    busy = type("PartPipeline", (PartPipeline,), {"unsettled": lambda _: Part.id > 0})
    part = {"id": 1, "steps": 5, **HELD_NOW}
    assert left(PartPipeline(), Part(**part)) is None
    for pipelines in ((PartPipeline(), busy()), (busy(), PartPipeline())):
        assert left(*pipelines, Part(**part)) == "still wants work and leased by PartPipeline"


def left(*given: Any, held: set[tuple[str, str]] | None = None) -> str | None:
    """Return what is the matter with a row, if anything is.

    Args:
        given: pipelines, and the row behind them.
        held: the rows that their holders trust to hold.
    """
    *pipelines, part = given
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(part)
    engines: Any = SimpleNamespace(eye=engine, clock=SimpleNamespace(now=NOW))
    trace: Any = SimpleNamespace(changes=[])
    world: Any = World(0, engines, trace)
    quiescence = Quiescence(
        engines,
        pipelines,
        scenario=Kept(world),
        trace=trace,
        round_trip_s=0.0,
        held=None if held is None else lambda: held,
    )
    found = [matter for _, matter in quiescence.left()]
    engine.dispose()
    return found[0] if found else None
