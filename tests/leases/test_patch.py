"""Notes: under the same guard as an outcome, and they end nothing."""

from __future__ import annotations

import uuid

import pytest

from rowlock.leases.apply import Patch, show, write_patches
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from ..pipelines.scenes import faults_of
from .ground import VOLUMES, add, change, claimed, row_of, transact

STATUS = VOLUMES.column("status")


async def test_a_note_leaves_the_lease_as_it_is(database: TemporaryDatabase) -> None:
    """A row whose progress is written would be given away, or have its rest begin."""
    await add(database, Volume())
    (item,) = await claimed(database)
    before = await row_of(database, VOLUMES, item.id)
    note = Patch(item, {"status": "busy"}, {"status": "submitted"})
    written = await transact(database, lambda c: write_patches(c, VOLUMES, [note]))
    assert written == [{STATUS: "busy"}]
    after = await row_of(database, VOLUMES, item.id)
    assert after.status == "busy"
    for name in ("lock_token", "lock_owner", "lock_expires_at", "last_processed_at"):
        assert getattr(after, name) == getattr(before, name), name


@pytest.mark.parametrize("waits", [False, True])
async def test_under_another_token_nothing_is_noted(
    database: TemporaryDatabase, *, waits: bool
) -> None:
    """Whoever lost its lease would go on to write into the row of the next holder."""
    await add(database, Volume())
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, lock_token=uuid.uuid4())
    note = Patch(item, {"status": "busy"}, {})
    written = await transact(database, lambda c: write_patches(c, VOLUMES, [note], waits=waits))
    assert written == [None]
    assert (await row_of(database, VOLUMES, item.id)).status == "submitted"


async def test_under_another_key_nothing_is_noted(database: TemporaryDatabase) -> None:
    """With a duplicated token, a note would be written to every row that carries it."""
    await add(database, Volume(), Volume())
    one, other = await claimed(database)
    await change(database, VOLUMES, other.id, lock_token=one.lock_token)
    note = Patch(one, {"status": "busy"}, {})
    written = await transact(database, lambda c: write_patches(c, VOLUMES, [note]))
    assert written == [{STATUS: "busy"}]
    assert (await row_of(database, VOLUMES, other.id)).status == "submitted"


async def test_of_notes_that_go_together_each_has_its_own_guard(
    database: TemporaryDatabase,
) -> None:
    """One row that somebody has changed would spoil the notes of all, or be written over."""
    await add(database, Volume(), Volume())
    one, other = await claimed(database)
    await change(database, VOLUMES, one.id, status="cancelled")
    notes = [Patch(item, {"status": "busy"}, {"status": "submitted"}) for item in (one, other)]
    assert await transact(database, lambda c: write_patches(c, VOLUMES, notes)) == [
        None,
        {STATUS: "busy"},
    ]
    assert [(await row_of(database, VOLUMES, item.id)).status for item in (one, other)] == [
        "cancelled",
        "busy",
    ]


async def test_notes_that_go_together_share_their_statements(database: TemporaryDatabase) -> None:
    """A thousand attempts that begin at once would need a round trip each."""
    await add(database, *(Volume() for _ in range(20)))
    items = await claimed(database, limit=20)
    notes = [
        Patch(item, {"status": "busy", "disk_id": str(number)}, {"status": "submitted"})
        for number, item in enumerate(items)
    ]
    with faults_of(database.engine) as faults:
        written = await transact(database, lambda c: write_patches(c, VOLUMES, notes))
        # To lock, to compare and to write; before them, BEGIN on SQLite.
        assert faults.count(lambda statement: True) <= 4
    assert None not in written
    rows = [await row_of(database, VOLUMES, item.id) for item in items]
    assert [row.disk_id for row in rows] == [str(number) for number in range(20)]


async def test_trust_is_asked_as_late_as_can_be(database: TemporaryDatabase) -> None:
    """A transaction that has waited for its turn would write after the trust in its lease was
    over.
    """
    await add(database, Volume())
    (item,) = await claimed(database)
    item.trusted_until = float("-inf")
    note = Patch(item, {"status": "busy"}, {})
    assert await transact(database, lambda c: write_patches(c, VOLUMES, [note])) == [None]
    assert (await row_of(database, VOLUMES, item.id)).status == "submitted"


def test_what_was_noted_is_shown_as_if_it_had_been_read() -> None:
    """The next write would take the row for what it was before."""
    volume = Volume(status="submitted")
    show(VOLUMES, volume, {STATUS: "busy"})
    assert volume.status == "busy"
