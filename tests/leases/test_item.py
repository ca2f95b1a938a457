"""Tests of the claim ticket: how long its holder may trust it, and what it gives."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rowlock import PipelineItem
from rowlock.clock import monotonic
from rowlock.errors import LeaseLost, PipelineError
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Base, Volume


def ticket(trusted_s: float, session_factory: Any = None) -> PipelineItem[Any]:
    return PipelineItem(
        id=7,
        lock_token=uuid.uuid4(),
        lock_owner="VolumePipeline",
        lock_expires_at=datetime(2031, 5, 17, tzinfo=UTC),
        prev_lock_expired=False,
        attempt=1,
        place=0.0,
        claimed_at=monotonic(),
        trusted_until=monotonic() + trusted_s,
        session_factory=session_factory,
    )


@virtual_time
async def test_trust_ends_with_time() -> None:
    """A holder would work on a row that another one may have by now."""
    item = ticket(30)
    seen = []
    for _ in range(4):
        seen.append((item.remaining, item.is_trusted(), item.is_lost))
        await asyncio.sleep(15)
    seconds = [timedelta(seconds=seconds) for seconds in (30, 15, 0, 0)]
    assert seen == list(zip(seconds, (True, True, False, False), (False,) * 4, strict=True))


@virtual_time
async def test_a_renewal_gives_trust_back_and_a_loss_does_not() -> None:
    """A holder that was late once would be stopped although it holds the lease; or a lost one
    would go on.
    """
    item = ticket(-1)
    assert not item.is_trusted()
    item.trusted_until = monotonic() + 5
    assert item.is_trusted()
    item.lose()
    assert (item.is_lost, item.is_trusted(), item.remaining) == (True, False, timedelta(0))


async def test_a_session_is_of_the_hosts_factory(database: TemporaryDatabase) -> None:
    """`process` could not read what it needs."""
    await database.create_tables(Base.metadata)
    async with ticket(30, database.session_factory).session() as session:
        session.add(Volume())
        await session.commit()
        assert len((await session.scalars(select(Volume))).all()) == 1


@pytest.mark.parametrize("lost", [True, False])
async def test_no_session_without_trust(sqlite_database: TemporaryDatabase, lost: bool) -> None:
    """A zombie would go on writing beside the new holder."""
    item = ticket(30 if lost else 0, sqlite_database.session_factory)
    if lost:
        item.lose()
    with pytest.raises(LeaseLost) as caught:
        item.session()
    assert (caught.value.pipeline, caught.value.row_id) == ("VolumePipeline", 7)


def test_the_row_is_there_when_work_begins() -> None:
    """A host that looks at a queued item would meet None and go on with it."""
    item = ticket(30)
    with pytest.raises(PipelineError, match="the row is read when work on the item begins"):
        _ = item.row
    row = Volume()
    item.row = row
    assert item.row is row


def test_tickets_are_equal_to_themselves_alone() -> None:
    """Two claims of one row would be one in a set."""
    one, other = ticket(30), ticket(30)
    assert one != other
    assert len({one, other, one}) == 2
