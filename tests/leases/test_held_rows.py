"""What one item holds of other tables: what is known of it, what may be, and by which names an
outcome finds it.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy.orm import make_transient_to_detached

from rowlock.errors import OutcomeError
from rowlock.leases.acquire import Acquired
from rowlock.leases.item import HeldRows
from rowlock.rows.leased_table import LeasedTable

from ..host import Attachment, Volume
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
    held.may_hold(leased, Acquired(keys, {}))
    held.holds(leased, {key: {} for key in keys})
    return held


def test_what_may_be_held_counts() -> None:
    """After a lost answer an item would take more rows than it may hold, or none be freed of
    those that it has.
    """
    held = HeldRows()
    assert (len(held), bool(held)) == (0, False)
    held.may_hold(VOLUMES, Acquired((ONE, OTHER), {}))
    held.may_hold(VOLUMES, Acquired((OTHER,), {}))
    held.may_hold(RUNS, Acquired((1,), {}))
    assert (len(held), bool(held)) == (3, True)
    assert held.count_with(VOLUMES, Acquired((OTHER, THIRD), {})) == 4
    assert held.count_with(RUNS, Acquired((1, 2, 3), {})) == 5
    assert held.count_with(ATTACHMENTS, Acquired((ONE,), {})) == 4


def test_what_may_be_held_is_not_known() -> None:
    """A result would rest on rows of which nobody knows whether they were locked."""
    held = HeldRows()
    held.may_hold(VOLUMES, Acquired((ONE, OTHER), {ONE: "Me"}))
    assert (list(held.known()), held.is_known(VOLUMES, ONE)) == ([], False)
    held.holds(VOLUMES, {ONE: {}})
    assert list(held.known()) == [(VOLUMES, (ONE,))]
    assert [
        held.is_known(leased, key)
        for leased, key in ((VOLUMES, ONE), (VOLUMES, OTHER), (RUNS, ONE))
    ] == [True, False, False]
    assert list(held.perhaps()) == [(VOLUMES, Acquired((ONE, OTHER), {ONE: "Me"}))]


def test_a_call_that_found_no_rows_leaves_nothing_to_free() -> None:
    """Each item without children would cost a statement more at its end."""
    held = holding()
    assert (list(held.known()), list(held.perhaps()), len(held)) == ([], [], 0)


def test_what_was_read_is_told_apart_by_table_and_key() -> None:
    """A row would be held against the values of another one."""
    held, status = HeldRows(), VOLUMES.column("status")
    for leased, key, value in ((VOLUMES, ONE, "a"), (VOLUMES, OTHER, "b"), (ATTACHMENTS, ONE, "c")):
        held.may_hold(leased, Acquired((key,), {}))
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
    held.may_hold(VOLUMES, Acquired((ONE, OTHER), {}))
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
