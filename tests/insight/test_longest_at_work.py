"""What has been longest at work: rows that hang are told before work that has no end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from rowlock import ItemView
from rowlock.cli.top import LONGEST_MAX, Look, longest_at_work
from rowlock.insight.replicas import ENDLESS, ITEMS_MAX, LiveReplicas, ReplicaState, report_of
from rowlock.insight.status import Status
from rowlock.testing import TemporaryDatabase

from ..host import RunPipeline, VolumePipeline
from .test_observer import at_rest, make_tables, manager_of, replicas


def item(pipeline: str, row_id: int, since_s: float, state: str = "running") -> ItemView:
    """Return one that has been in its state for so long."""
    return ItemView(pipeline, row_id, state, None, since_s, 1, uuid4())


SHARDS = [item("Flow", number, 9_000 + number) for number in range(2 * ITEMS_MAX)]
PIPELINES: dict[str, dict[str, Any]] = {"Flow": {ENDLESS: True}, "Jobs": {}}


def test_a_row_that_hangs_is_told_before_work_without_an_end() -> None:
    """With two hundred shards at work, nobody would see the row that has hung for an hour; on the
    other hand shards are worth their lines where there is room.
    """
    hung, short = item("Jobs", 7, 3_600), item("Jobs", 8, 1)
    report = report_of(PIPELINES, [*SHARDS, short, hung], lag_s=0, skew_s=None)
    assert [one["row_id"] for one in report["items"][:3]] == ["7", "8", str(len(SHARDS) - 1)]
    assert report["left_out"] > 0
    (first, *others) = longest_at_work(look_of(report))
    assert first.text.startswith("Job 7")
    assert len(others) == LONGEST_MAX - 1
    assert others[0].text.startswith("Job 8")
    assert others[1].text.startswith(f"Flow {len(SHARDS) - 1}")


def look_of(report: Mapping[str, Any]) -> Look:
    """Return what `top` has seen of one replica."""
    replica = ReplicaState("mark", "web-7", "host", 7, 1.0, 9_000.0, draining=False, report=report)
    return Look(Status("shop", None, LiveReplicas(None, (replica,)), ()), {"Jobs": "Job"})


async def test_a_pipeline_without_an_end_says_so(sqlite_database: TemporaryDatabase) -> None:
    """Its work would fill the list of what has been longest at work."""
    await make_tables(sqlite_database)
    endless = VolumePipeline(process_timeout=None)
    async with at_rest(manager_of(sqlite_database, RunPipeline(), endless)) as observer:
        await observer.beat()
    [row] = await replicas(sqlite_database)
    told = {name: one.get(ENDLESS) for name, one in row.report["pipelines"].items()}
    assert told == {"RunPipeline": None, "VolumePipeline": True}
