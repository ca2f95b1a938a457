"""Tests of room: which rows are brought forward when there is some, and how much of it is
remembered.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest

from rowlock.database.transaction import in_transaction
from rowlock.dispatch import PENDING, RUNNING
from rowlock.dispatch.placement import KEPT_S, ROOM_MAX, Capacity, bring_forward
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Render, add, all_renders, now_of

pytestmark = pytest.mark.either_database(
    but=["test_the_oldest_submissions_first_and_no_more_than_there_is_room_for"]
)

RENDERS: LeasedTable = LeasedTable.of(Render)
NOBODY = "capacity: none of 2 workers accepted"
TIMEOUT = timedelta(seconds=10)


async def brought_forward(database: TemporaryDatabase, *, count: int) -> list[str | None]:
    """Bring rows forward, and return the keys of those that are due, in the order of submission."""

    async def work(_session: Any, connection: Any) -> frozenset[Any]:
        return await bring_forward(connection, RENDERS, count=count)

    moved = await in_transaction(
        database.session_factory, RENDERS, work, purpose="test", timeout=TIMEOUT
    )
    now = await now_of(database)
    due = [
        row for row in await all_renders(database) if row.due_at is not None and row.due_at <= now
    ]
    assert {row.id for row in due} == moved
    return [row.dedup_key for row in due]


async def test_the_oldest_submissions_first_and_no_more_than_there_is_room_for(
    database: TemporaryDatabase,
) -> None:
    """A flood of late comers would pass those who have waited, or a hundred rows would run for
    one place.
    """
    now = await now_of(database)
    await add(
        database,
        *(
            Render(
                dedup_key=f"{age}",
                submitted_at=now - timedelta(minutes=age),
                due_at=now + timedelta(minutes=1),
                last_error=NOBODY,
            )
            for age in (1, 4, 2, 3)
        ),
    )
    assert await brought_forward(database, count=2) == ["4", "3"]


@pytest.mark.parametrize(
    "otherwise",
    [
        {"last_error": "heartbeat lost: killed"},
        {"last_error": None},
        {"status": RUNNING},
        {"parked": True},
        {"held": True},
    ],
    ids="-".join,
)
async def test_rows_that_rest_for_another_reason_rest_on(
    database: TemporaryDatabase, otherwise: dict[str, Any]
) -> None:
    """A row whose worker was just lost would kill the next one at once; one that is held would
    be written under its holder.
    """
    now = await now_of(database)
    values: dict[str, Any] = {"status": PENDING, "last_error": NOBODY, **otherwise}
    if values.pop("parked", False):
        values["parked_at"] = now
    if values.pop("held", False):
        values |= {
            "lock_token": uuid.uuid4(),
            "lock_owner": "Me",
            "lock_expires_at": now + timedelta(minutes=1),
        }
    await add(database, Render(dedup_key="a", due_at=now + timedelta(minutes=1), **values))
    assert await brought_forward(database, count=5) == []


def test_room_is_counted_once_and_bounded() -> None:
    """A worker that stays would be taken for a new one at each look, and a place that was used
    for one that is free.
    """
    room = Capacity()
    assert room.look(["a", "b"]) == 2
    assert room.look(["a", "b"]) == 2
    room.occupied("row")
    assert room.look(["a", "b"]) == 1
    room.freed()
    assert room.look(["b", "c"]) == 3
    for row in range(5):
        room.occupied(row)
    assert room.look(["b", "c"]) == 0
    for _ in range(2 * ROOM_MAX):
        room.freed()
    assert room.look(["b", "c"]) == ROOM_MAX


@virtual_time
async def test_room_of_many_workers_is_given_bit_by_bit() -> None:
    """Rows for a thousand workers would be due at once, and their places be given again before
    they can be offered.
    """
    room, workers = Capacity(), [f"{number}" for number in range(ROOM_MAX + 36)]
    assert room.look(workers) == ROOM_MAX
    room.keep_for(range(ROOM_MAX))
    assert room.look(workers) == 36
    for row in range(ROOM_MAX):
        room.occupied(row)
    assert room.look(workers) == 36
    for _ in range(2 * ROOM_MAX):
        room.freed()
    room.keep_for(range(ROOM_MAX))
    assert room.look(workers) == 36, "no more places than workers"
    assert room.look(workers[:3]) == 0, "and none of those that have gone"


@virtual_time
async def test_a_row_that_was_brought_forward_uses_one_place() -> None:
    """A row would use a place when it is brought forward and another one when it is accepted:
    that worker would stay idle.
    """
    room = Capacity()
    assert room.look(["a", "b", "c"]) == 3
    room.keep_for(["first", "second", "third"])
    assert room.look(["a", "b", "c"]) == 0
    room.occupied("first")
    room.occupied("nobody brought it forward")
    assert room.look(["a", "b", "c"]) == 0
    room.freed()
    room.freed()
    assert room.look(["a", "b", "c"]) == 1, "the others are still to come"
    room.refused("second", since=room.freed_ever - 2)
    assert room.look(["a", "b", "c"]) == 1, "one of two is kept for the third"


@virtual_time
async def test_a_place_is_kept_for_a_while() -> None:
    """A place would be kept for ever for a row that another replica has claimed, or that was
    cancelled on its way.
    """
    room = Capacity()
    room.look(["a"])
    room.keep_for(["first"])
    await asyncio.sleep(KEPT_S / 2)
    assert room.look(["a"]) == 0
    await asyncio.sleep(KEPT_S)
    assert room.look(["a"]) == 1
