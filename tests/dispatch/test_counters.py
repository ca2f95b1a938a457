"""What a dispatching pipeline counts, and that the metrics have it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from rowlock import AdmissionRejected, Draining, NoWorkersAvailable, PipelineManager
from rowlock.dispatch import DispatchPipeline, PriorityLoadBalancer, WorkerBusy, WorkerGone
from rowlock.dispatch.placement import DispatchCounters, Placement
from rowlock.telemetry.prometheus import register
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import VolumePipeline
from ..telemetry.scrapes import Series, scraped, value
from .renders import Fleet, Render, Scenes, settled
from .test_placement import TASK, Desk


@virtual_time
async def test_offers_are_counted_by_their_answer() -> None:
    """Nobody would see that a fleet is too small, or that its machines die."""
    counters = DispatchCounters()
    desk = Desk(a=WorkerBusy("a"), b=WorkerGone("b"), c="c")
    placement = Placement(desk, PriorityLoadBalancer(), counters)  # type: ignore[arg-type]
    await placement.place(TASK)
    desk.answers["c"] = WorkerBusy("c")
    with pytest.raises(NoWorkersAvailable):
        await placement.place(TASK)
    # Who is gone is not asked the second time.
    found = (counters.offers_accepted, counters.offers_refused, counters.offers_gone)
    assert found == (1, 3, 1)


@virtual_time
async def test_submissions_are_counted_by_their_answer(virtual_database: TemporaryDatabase) -> None:
    """Nobody would see that clients are sent away."""
    renders = DispatchPipeline(Render, handler=Scenes(1), engine=Fleet(1), max_active=1)
    manager = PipelineManager(virtual_database.session_factory, [renders, VolumePipeline()])
    registry = CollectorRegistry()
    register(manager, registry=registry)

    async def submit(key: str) -> None:
        async with virtual_database.session_factory() as session, session.begin():
            await renders.submit(session, dedup_key=key)

    await submit("a")
    await submit("a")
    with pytest.raises(AdmissionRejected):
        await submit("b")
    async with manager:
        await settled(virtual_database)
    with pytest.raises(Draining):
        await submit("c")
    series = scraped(registry)
    submissions = {one: told(series, "submissions", one) for one in SUBMISSIONS}
    assert submissions == {"admitted": 1, "attached": 1, "rejected": 1, "draining": 1}
    offers = {one: told(series, "offers", one) for one in ("accepted", "refused", "gone")}
    assert offers == {"accepted": 1, "refused": 0, "gone": 0}
    others = [
        one for one in series if "dispatch" in one[0] and ("pipeline", "VolumePipeline") in one[1]
    ]
    assert others == [], "a pipeline that dispatches nothing has no such series"


SUBMISSIONS = ("admitted", "attached", "rejected", "draining")


def told(series: Series, what: str, result: str) -> float:
    return value(series, f"dispatch_{what}_total", pipeline="DispatchRender", result=result)
