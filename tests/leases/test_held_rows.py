"""What one item holds of other tables: what is known of it, what may be."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import make_transient_to_detached

from rowlock.clock import monotonic
from rowlock.errors import LeaseLost, OutcomeError, PipelineError
from rowlock.leases.item import HeldRows
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Attachment, Base, Volume
from ..pipelines.scenes import ticket
from .ground import RUNS, VOLUMES

ATTACHMENTS = LeasedTable.of(Attachment)
ONE, OTHER, THIRD = (uuid.UUID(int=number) for number in (1, 2, 3))


class SpecialVolume(Volume):
    __abstract__ = True  # or all tests would have it


def detached(model: type[Any], key: object) -> Any:
    row = model(id=key)
    make_transient_to_detached(row)
    return row


def holding(*keys: Any, leased: LeasedTable = VOLUMES) -> HeldRows:
    held = HeldRows()
    held.may_hold(leased, dict.fromkeys(keys))
    held.holds(leased, {key: {} for key in keys})
    return held


def test_what_may_be_held_counts() -> None:
    """After a lost answer an item would take more rows than it may hold, or none be freed of
    those that it has.
    """
    held = HeldRows()
    assert (len(held), bool(held)) == (0, False)
    held.may_hold(VOLUMES, dict.fromkeys((ONE, OTHER)))
    held.may_hold(VOLUMES, dict.fromkeys((OTHER,)))
    held.may_hold(RUNS, dict.fromkeys((1,)))
    assert (len(held), bool(held)) == (3, True)
    assert held.count_with(VOLUMES, dict.fromkeys((OTHER, THIRD))) == 4
    assert held.count_with(RUNS, dict.fromkeys((1, 2, 3))) == 5
    assert held.count_with(ATTACHMENTS, dict.fromkeys((ONE,))) == 4


def test_what_may_be_held_is_not_known() -> None:
    """A result would rest on rows of which nobody knows whether they were locked."""
    held = HeldRows()
    held.may_hold(VOLUMES, {ONE: "Me", OTHER: None})
    assert (list(held.known()), held.is_known(VOLUMES, ONE)) == ([], False)
    held.holds(VOLUMES, {ONE: {}})
    assert list(held.known()) == [(VOLUMES, (ONE,))]
    assert [
        held.is_known(leased, key)
        for leased, key in ((VOLUMES, ONE), (VOLUMES, OTHER), (RUNS, ONE))
    ] == [True, False, False]
    assert list(held.perhaps()) == [(VOLUMES, {ONE: "Me", OTHER: None})]


def test_a_call_that_found_no_rows_leaves_nothing_to_free() -> None:
    """Each item without children would cost a statement more at its end."""
    held = holding()
    assert (list(held.known()), list(held.perhaps()), len(held)) == ([], [], 0)


def test_what_was_read_is_told_apart_by_table_and_key() -> None:
    """A row would be held against the values of another one."""
    held, status = HeldRows(), VOLUMES.column("status")
    for leased, key, value in ((VOLUMES, ONE, "a"), (VOLUMES, OTHER, "b"), (ATTACHMENTS, ONE, "c")):
        held.may_hold(leased, dict.fromkeys((key,)))
        held.holds(leased, {key: {status: value}})
    seen = [
        held.as_read(leased, key)[status]
        for leased, key in ((VOLUMES, ONE), (VOLUMES, OTHER), (ATTACHMENTS, ONE))
    ]
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize(
    "named",
    [detached(Volume, OTHER), (Volume, OTHER), (SpecialVolume, OTHER)],
    ids=["itself", "by its key", "by a kind"],
)
def test_a_row_is_found_by_itself_or_by_its_key(named: Any) -> None:
    """A host could not say what is to be written to a row that it holds."""
    held = holding(7, leased=RUNS)
    held.may_hold(VOLUMES, dict.fromkeys((ONE, OTHER)))
    held.holds(VOLUMES, {ONE: {}, OTHER: {}})
    assert held.find(named) == (VOLUMES, OTHER)


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        (
            detached(Volume, THIRD),
            f"Volume {THIRD} is not locked by this item; lock it with item.lock_related",
        ),
        ((Volume, THIRD), f"Volume {THIRD} is not locked by this item"),
        ((Attachment, ONE), f"Attachment {ONE} is not locked by this item"),
        (Volume(id=ONE), r"rows as lock_related\(\) returned them, or pairs \(Model, key\), not <"),
        (("Volume", ONE), "or pairs"),
        ((Volume, ONE, 1), "or pairs"),
        (Volume, "or pairs"),
        ("x" * 500, "not 'xxx"),
        (None, "not None"),
    ],
    ids=[
        "itself",
        "by its key",
        "another table",
        "new",
        "a name",
        "a triple",
        "a model",
        "a text",
        "nothing",
    ],
)
def test_what_is_not_held_is_refused(named: Any, complaint: str) -> None:
    """A row would be written that somebody else has, or a slip of the host's show as an error
    from the depths.
    """
    with pytest.raises(OutcomeError, match=complaint) as caught:
        holding(ONE, OTHER).find(named)
    assert len(str(caught.value)) < 300


@virtual_time
async def test_trust_ends_with_time() -> None:
    """A holder would work on a row that another one may have by now."""
    item = ticket(trusted_for_s=30)
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
    item = ticket(trusted_for_s=-1)
    assert not item.is_trusted()
    item.trusted_until = monotonic() + 5
    assert item.is_trusted()
    item.lose()
    assert (item.is_lost, item.is_trusted(), item.remaining) == (True, False, timedelta(0))


async def test_a_session_is_of_the_hosts_factory(database: TemporaryDatabase) -> None:
    """`process` could not read what it needs."""
    await database.create_tables(Base.metadata)
    async with ticket(
        trusted_for_s=30, session_factory=database.session_factory
    ).session() as session:
        session.add(Volume())
        await session.commit()
        assert len((await session.scalars(select(Volume))).all()) == 1


@pytest.mark.parametrize("lost", [True, False])
async def test_no_session_without_trust(sqlite_database: TemporaryDatabase, lost: bool) -> None:
    """A zombie would go on writing beside the new holder."""
    item = ticket(trusted_for_s=30 if lost else 0, session_factory=sqlite_database.session_factory)
    if lost:
        item.lose()
    with pytest.raises(LeaseLost) as caught:
        item.session()
    assert (caught.value.pipeline, caught.value.row_id) == ("VolumePipeline", item.id)


def test_the_row_is_there_when_work_begins() -> None:
    """A host that looks at a queued item would meet None and go on with it."""
    item = ticket(trusted_for_s=30)
    with pytest.raises(PipelineError, match="the row is read when work on the item begins"):
        _ = item.row
    row = Volume()
    item.row = row
    assert item.row is row


def test_tickets_are_equal_to_themselves_alone() -> None:
    """Two claims of one row would be one in a set."""
    one, other = ticket(trusted_for_s=30), ticket(trusted_for_s=30)
    assert one != other
    assert len({one, other, one}) == 2
