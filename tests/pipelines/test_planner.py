"""What outcomes become before any database is asked: pure data, for a row whose columns and time
are known.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import make_transient_to_detached

from rowlock import NOW_PLACEHOLDER, Apply, Park, PipelineItem, PipelineSettings, Reset, Retry
from rowlock.errors import OutcomeError
from rowlock.leases.acquire import Acquired
from rowlock.leases.apply import RowWrite
from rowlock.leases.held_rows import HeldRows
from rowlock.pipelines.settling.planner import Planner
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import virtual_time

from ..host import Attachment, Run, Volume
from .scenes import ticket

VOLUMES, RUNS, ATTACHMENTS = (LeasedTable.of(model) for model in (Volume, Run, Attachment))
NOW = datetime(2031, 5, 17, tzinfo=UTC)
CHILD = uuid.UUID(int=1)
FREED = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
SETTINGS = PipelineSettings(
    min_processing_interval=timedelta(seconds=20),
    retry_delay=timedelta(seconds=10),
    retry_delay_max=timedelta(seconds=60),
    max_attempts=3,
)


class Middling:
    """Randomness that is none: all jitter is nothing."""

    def random(self) -> float:
        """Return a number in the middle."""
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2


def planner(leased: LeasedTable, *, intent: tuple[str, ...] = ()) -> Planner:
    """Return one at `NOW`."""
    columns = [leased.column(name) for name in intent]
    return Planner(NOW, leased=leased, settings=SETTINGS, intent=columns, rng=Middling())


def written(write: RowWrite) -> dict[str, Any]:
    """Return what is written, by the names of the columns, without those that are written as
    they are.
    """
    named = {column.name: value for column, value in write.values.items()}
    return {name: value for name, value in named.items() if name not in ("updated_at", *FREED)}


def attempt(number: int, row: Any = None) -> PipelineItem[Any]:
    """Return the ticket of an attempt of that number, whose row was read if there is one."""
    item = ticket()
    item.attempt = number
    if row is not None:
        make_transient_to_detached(row)
        item.row = row
    return item


@virtual_time
async def test_outcomes_of_one_batch_that_are_alike_are_one_write() -> None:
    """A thousand rows with the same outcome would be planned, grouped and compared a thousand
    times.
    """
    plan, same = planner(VOLUMES), {"status": "active"}
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


@pytest.mark.parametrize(
    ("after", "rests_s"), [(None, 20), (0, 0), (90, 90), (timedelta(minutes=3), 180)], ids=str
)
@virtual_time
async def test_a_success_rests_and_counts_nothing(after: Any, rests_s: float) -> None:
    """A row would be due at a time that nobody has asked for, or carry failures that are over."""
    write = planner(RUNS).plan(attempt(3), Apply({"status": NOW_PLACEHOLDER}, after=after))
    assert written(write) == {
        "last_processed_at": NOW,
        "attempts": 0,
        "due_at": NOW + timedelta(seconds=rests_s),
        "status": NOW,
    }
    assert (write.parks, write.unless_changed, write.related) == (False, {}, ())


@pytest.mark.parametrize(("number", "rests_s"), [(1, 10), (2, 20)])
@virtual_time
async def test_a_failure_is_counted_and_rests_longer_each_time(number: int, rests_s: float) -> None:
    """A row that fails would be tried without a rest, or its error be of another attempt."""
    write = planner(RUNS).plan(attempt(number), Retry(error="no disk", values={"result": 1}))
    assert written(write) == {
        "last_processed_at": NOW,
        "attempts": number,
        "last_error": "no disk",
        "due_at": NOW + timedelta(seconds=rests_s),
        "result": 1,
    }
    assert not write.parks


@pytest.mark.parametrize(
    ("error", "text"),
    [("no disk", "gave up after 3 attempts: no disk"), (None, "gave up after 3 attempts")],
)
@virtual_time
async def test_the_last_failure_parks(error: str | None, text: str) -> None:
    """A row that can never succeed would be tried for ever, or nobody be told why it is no
    longer.
    """
    write = planner(RUNS).plan(attempt(3), Retry(error=error))
    assert (write.parks, written(write)) == (
        True,
        {"last_processed_at": NOW, "attempts": 3, "last_error": text, "parked_at": NOW},
    )


@virtual_time
async def test_a_row_that_is_set_aside_or_waits_for_locks() -> None:
    """A parked row would lose its reason; one that waits for locks would wait as if it had
    failed.
    """
    parked, reset = (
        planner(RUNS).plan(attempt(1), Park("a person")),
        planner(RUNS).plan(attempt(1), Reset()),
    )
    assert (parked.parks, written(parked)) == (
        True,
        {"last_processed_at": NOW, "parked_at": NOW, "last_error": "a person"},
    )
    assert (reset.parks, written(reset)) == (
        False,
        {"last_processed_at": NOW, "due_at": NOW + timedelta(seconds=10)},
    )


@virtual_time
async def test_what_services_own_is_held_against_what_was_read() -> None:
    """A request that came meanwhile would be overwritten, or a failure that writes nothing of it
    be kept from being counted.
    """
    plan, status = planner(VOLUMES, intent=("status",)), VOLUMES.column("status")
    item = attempt(1, Volume(id=CHILD, status="as read", size_gb=7))
    applied = plan.plan(item, Apply({"disk_id": "d"}, unless_changed=["size_gb"]))
    assert applied.unless_changed == {status: "as read", VOLUMES.column("size_gb"): 7}
    assert {column.name: value for column, value in applied.when_changed.items()} == FREED
    assert plan.plan(item, Retry(error="no", values={"disk_id": "d"})).unless_changed == {}
    assert plan.plan(item, Retry(error="no", values={"status": "failed"})).unless_changed == {
        status: "as read"
    }
    unread = plan.plan(attempt(1), Apply({"disk_id": "d"}))
    assert (unread.unless_changed, unread.when_changed) == ({}, {})


@virtual_time
async def test_a_row_that_was_overtaken_is_due_at_once() -> None:
    """What a service asked for would wait for the interval of an attempt that was never written."""
    item = attempt(1, Run(id=1, status="as read", due_at=NOW))
    for outcome in (
        Apply(unless_changed=["status"]),
        Apply({"result": 1}, unless_changed=["status"], after=90),
    ):
        write = planner(RUNS).plan(item, outcome)
        changed = {
            column.name: value
            for column, value in write.when_changed.items()
            if column.name != "updated_at"
        }
        assert changed == FREED | {"due_at": NOW}


def holding(*keys: Any) -> HeldRows:
    """Return the attachments that an item holds."""
    held = HeldRows()
    held.may_hold(ATTACHMENTS, Acquired(keys, {}))
    held.holds(ATTACHMENTS, {key: {} for key in keys})
    return held


@virtual_time
async def test_related_rows_are_written_and_freed_with_the_main_row() -> None:
    """A child would get another's values, keep its lock, or another time than its parent."""
    item = attempt(1)
    item.held = holding(CHILD)
    related = {(Attachment, CHILD): {Attachment.status: "gathered", "name": NOW_PLACEHOLDER}}
    write = planner(VOLUMES).plan(item, Apply({"status": "active"}, related=related))
    assert written(write)["status"] == "active"
    [child] = write.related
    assert (child.leased, child.key) == (ATTACHMENTS, CHILD)
    values = {column.name: value for column, value in child.values.items()}
    assert values == FREED | {"status": "gathered", "name": NOW}


@virtual_time
async def test_a_related_row_that_is_not_held_is_refused() -> None:
    """A row would be written that somebody else may have."""
    item = attempt(1)
    item.held = holding(CHILD)
    with pytest.raises(OutcomeError, match="is not locked by this item"):
        planner(VOLUMES).plan(
            item, Apply(related={(Attachment, uuid.UUID(int=2)): {"status": "x"}})
        )
