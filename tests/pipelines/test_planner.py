"""What outcomes become before any database is asked, where rows show no difference: one write for
outcomes that are alike, and what is compared. What is written is looked at in ``test_plan.py``.
"""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import make_transient_to_detached

from rowlock import Apply, PipelineItem, PipelineSettings, Retry
from rowlock.leases.apply import RowWrite
from rowlock.pipelines.planner import Planner
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import virtual_time

from ..host import Volume
from .scenes import ticket

VOLUMES = LeasedTable.of(Volume)
STATUS = VOLUMES.column("status")
FREED = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


def planner(*intent: Column[Any]) -> Planner:
    now = datetime(2031, 5, 17, tzinfo=UTC)
    plans = Planner(now, leased=VOLUMES, settings=PipelineSettings(), intent=list(intent))
    plans.rng = random.Random(1)
    return plans


def written(write: RowWrite) -> dict[str, Any]:
    return {column.name: value for column, value in write.values.items()}


def read(row: Volume) -> PipelineItem[Any]:
    item = ticket()
    make_transient_to_detached(row)
    item.row = row
    return item


@virtual_time
async def test_outcomes_of_one_batch_that_are_alike_are_one_write() -> None:
    """A thousand rows with the same outcome would be planned, grouped and compared a thousand
    times.
    """
    plan, same = planner(), {"status": "active"}
    first, second = plan.plan(ticket(), Apply(same)), plan.plan(ticket(), Apply(dict(same)))
    assert first is second
    other = plan.plan(ticket(), Apply({"status": "other"}))
    assert (other is first, written(other)["status"], written(first)["status"]) == (
        False,
        "other",
        "active",
    )
    assert written(plan.plan(ticket(), Apply({"size_gb": 1})))["size_gb"] == 1
    assert written(plan.plan(ticket(), Apply({"size_gb": True})))["size_gb"] is True


@virtual_time
async def test_what_services_own_is_held_against_what_was_read() -> None:
    """A request that came meanwhile would be overwritten, or a failure that writes nothing of it
    be kept from being counted.
    """
    plan = planner(STATUS)
    item = read(Volume(id=uuid.uuid4(), status="as read", size_gb=7))
    applied = plan.plan(item, Apply({"disk_id": "d"}, unless_changed=["size_gb"]))
    assert applied.unless_changed == {STATUS: "as read", VOLUMES.column("size_gb"): 7}
    assert {column.name: value for column, value in applied.when_changed.items()} == FREED
    assert plan.plan(item, Retry(error="no", values={"disk_id": "d"})).unless_changed == {}
    assert plan.plan(item, Retry(error="no", values={"status": "failed"})).unless_changed == {
        STATUS: "as read"
    }
    unread = plan.plan(ticket(), Apply({"disk_id": "d"}))
    assert (unread.unless_changed, unread.when_changed) == ({}, {})
