"""What a claim sees to besides its rows: what a dead holder had locked with them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from rowlock import PipelineItem
from rowlock.leases.claim import claim
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, Run, Volume
from ..pipelines.scenes import is_free, read_all
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, TIMEOUT, VOLUMES, add, order_for, row_of

ATTACHMENTS = LeasedTable.of(Attachment)


async def claimed_by(
    database: TemporaryDatabase, leased: LeasedTable, **besides: Any
) -> list[PipelineItem[Any]]:
    order = replace(order_for(leased), **besides)
    return await claim(database.session_factory, order, lease_margin=MARGIN, timeout=TIMEOUT)


async def test_what_a_dead_holder_had_locked_is_freed_with_its_row(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Its children would stay locked for a parent that takes another path now; or a living
    holder lose its own.
    """
    await add(database_with_clock, Volume())
    (dead,) = await claimed_by(database_with_clock, VOLUMES)
    living = uuid.uuid4()
    until = database_with_clock.clock.now + 10 * LOCK_TIMEOUT
    children = [
        Attachment(volume_id=dead.id, lock_token=token, lock_owner="Me", lock_expires_at=until)
        for token in (dead.lock_token, dead.lock_token, living)
    ]
    await add(database_with_clock, *children)
    database_with_clock.clock.advance(LOCK_TIMEOUT.total_seconds())
    (heir,) = await claimed_by(database_with_clock, VOLUMES, related=(ATTACHMENTS,))
    assert (heir.id, heir.prev_lock_expired) == (dead.id, True)
    rows = await read_all(database_with_clock, Attachment)
    assert sorted(str(row.lock_token) for row in rows) == sorted(["None", "None", str(living)])
    assert sum(map(is_free, rows)) == 2


async def test_of_what_a_sibling_had_locked_only_what_has_ended_is_freed(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Children of a dead sibling would stay locked; or a parent that no pipeline here knows of
    lose live ones.
    """
    database = database_with_clock
    await add(database, Volume())
    (dead,) = await claimed_by(database, VOLUMES, owner="Somebody")
    ended, alive = dead.lock_expires_at, dead.lock_expires_at + LOCK_TIMEOUT
    await add(
        database,
        *(
            Attachment(
                volume_id=dead.id,
                lock_token=dead.lock_token,
                lock_owner="Somebody",
                lock_expires_at=until,
            )
            for until in (ended, alive)
        ),
    )
    database.clock.advance(LOCK_TIMEOUT.total_seconds())
    (heir,) = await claimed_by(database, VOLUMES, related=(ATTACHMENTS,))
    assert heir.prev_lock_expired
    assert [
        row.lock_expires_at for row in await read_all(database, Attachment) if not is_free(row)
    ] == [alive]


@pytest.mark.parametrize("with_rows", [True, False])
async def test_a_row_comes_as_it_is_leased(database: TemporaryDatabase, *, with_rows: bool) -> None:
    """`process` would see the row as it was before its claim: without its token, or one failure
    behind.
    """
    await add(database, Run(id=1, attempts=2, result={"a": 1}))
    (item,) = await claimed_by(database, RUNS, with_rows=with_rows)
    assert item.has_row == with_rows
    if with_rows:
        now = await row_of(database, RUNS, 1)
        names = [column.key for column in RUNS.mapper.column_attrs]
        assert {name: getattr(item.row, name) for name in names} == {
            name: getattr(now, name) for name in names
        }
        assert (item.row.lock_token, item.row.lock_owner, item.row.attempts) == (
            item.lock_token,
            "Me",
            2,
        )
