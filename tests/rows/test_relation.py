"""How rows belong together: the foreign key says it, in either direction, and where it does not,
the host must.
"""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ModelError
from rowlock.rows.leased_table import LeasedTable, relation_between

from ..host import Attachment, Run, Volume


class Base(DeclarativeBase):
    """A host of its own."""


class Node(LockColumns, Base):
    __tablename__ = "nodes"
    id: Mapped[int] = mapped_column(primary_key=True)
    above_id: Mapped[int | None] = mapped_column(ForeignKey("nodes.id"))


class Link(LockColumns, Base):
    __tablename__ = "links"
    id: Mapped[int] = mapped_column(primary_key=True)
    one_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    other_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))


@pytest.mark.parametrize(("main", "related"), [(Volume, Attachment), (Attachment, Volume)])
def test_one_foreign_key_says_it(main: type, related: type) -> None:
    """A host would have to write down what its tables say."""
    on = relation_between(LeasedTable.of(main), LeasedTable.of(related))
    assert on is not None
    assert on.compare(Volume.id == Attachment.volume_id) or on.compare(
        Attachment.volume_id == Volume.id
    )


def test_without_a_foreign_key_nobody_knows() -> None:
    """A condition would be made up."""
    assert relation_between(LeasedTable.of(Volume), LeasedTable.of(Run)) is None


def test_within_one_table_nobody_knows() -> None:
    """A row would be taken for its own child."""
    assert relation_between(LeasedTable.of(Node), LeasedTable.of(Node)) is None


def test_several_foreign_keys_are_refused() -> None:
    """One of them would be picked at random."""
    with pytest.raises(
        ModelError, match=r"several foreign keys connect Node and Link; .*Related\(Link, on="
    ) as told:
        relation_between(LeasedTable.of(Node), LeasedTable.of(Link))
    assert told.value.model == "Link"
