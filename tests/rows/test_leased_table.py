"""Reading a host's model: everything that could be wrong with it is found here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
    JSON,
    TIMESTAMP,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    String,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    deferred,
    mapped_column,
    relationship,
    synonym,
)
from sqlalchemy.types import TypeDecorator

from rowlock import LockColumns, ModelError, ScheduleColumns, UtcDateTime
from rowlock.errors import OutcomeError
from rowlock.rows.leased_table import LOCK_COLUMNS, SCHEDULE_COLUMNS, LeasedTable, relation_between

from ..host import Attachment, Run, Volume

GOOD: dict[str, Callable[[], Column[Any]]] = {
    "id": lambda: Column(Integer, primary_key=True),
    "lock_token": lambda: Column(Uuid),
    "lock_owner": lambda: Column(String(40)),
    "lock_expires_at": lambda: Column(UtcDateTime),
    "last_processed_at": lambda: Column(UtcDateTime),
    "due_at": lambda: Column(UtcDateTime, nullable=False),
    "attempts": lambda: Column(Integer, nullable=False),
    "last_error": lambda: Column(Text),
    "parked_at": lambda: Column(UtcDateTime),
    "deadline_at": lambda: Column(UtcDateTime),
}
TIMES = ("lock_expires_at", "last_processed_at", "due_at", "parked_at", "deadline_at")
NULLABLE = (*LOCK_COLUMNS, "last_error", "parked_at", "deadline_at")


def model_of(names: tuple[str, ...] = tuple(GOOD), /, **replaced: object) -> type[Any]:
    """Return a model that spells the columns itself; some replaced, those replaced by None left
    out.
    """
    base = type("Base", (DeclarativeBase,), {})
    columns = {name: GOOD[name]() for name in names} | replaced
    body = {name: column for name, column in columns.items() if column is not None}
    return type("Task", (base,), {"__tablename__": "tasks", **body})


def with_locks(**more: object) -> type[Any]:
    return model_of(("id", *LOCK_COLUMNS), **more)


class Wrapped(TypeDecorator[Any]):
    impl = String
    cache_ok = True


def wrapped(inner: Any) -> Any:
    middle = type("Middle", (Wrapped,), {"impl": inner, "cache_ok": True})
    return type("Outer", (Wrapped,), {"impl": middle(), "cache_ok": True})()


# ---------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    ("model", "has_schedule"), [(Volume, False), (Run, True), (Attachment, False)]
)
def test_a_model_with_the_mixins(model: type[Any], has_schedule: bool) -> None:
    """The usual way would not work."""
    leased = LeasedTable.of(model)
    assert leased.model is model
    assert leased.table is model.__table__
    assert leased.key is model.__table__.c.id
    assert leased.key_name == "id"
    assert leased.name == model.__name__
    assert leased.has_schedule is has_schedule
    assert leased.lease_columns == (*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if has_schedule else ()))
    assert leased.attribute("lock_token") is model.lock_token
    assert leased.column("lock_token") is model.__table__.c.lock_token


def test_a_model_that_spells_the_columns_itself() -> None:
    """A host would have to inherit from us."""
    assert LeasedTable.of(model_of()).has_schedule
    assert not LeasedTable.of(with_locks()).has_schedule


@pytest.mark.parametrize(
    ("name", "column_type"),
    [
        ("lock_token", Uuid(as_uuid=False)),
        ("lock_token", Uuid(native_uuid=False)),
        ("lock_owner", Text()),
        ("lock_owner", wrapped(String(40))),
        ("lock_expires_at", DateTime(timezone=True)),
        ("lock_expires_at", TIMESTAMP(timezone=True)),
        ("lock_expires_at", wrapped(DateTime(timezone=True))),
        ("last_error", String(2000)),
    ],
)
def test_a_type_of_the_same_kind_fits(name: str, column_type: Any) -> None:
    """A host would have to migrate a column that can do what we need."""
    assert LeasedTable.of(model_of(**{name: Column(column_type)})).has_schedule


@pytest.mark.parametrize("name", ["due_at", "attempts", "last_error", "parked_at", "deadline_at"])
def test_a_single_column_with_a_name_of_ours_is_the_hosts_own(name: str) -> None:
    """A host that has its own `due_at` could not use us without renaming it."""
    assert not LeasedTable.of(with_locks(**{name: Column(String)})).has_schedule


def test_columns_of_the_hosts_own_without_due_at() -> None:
    """A host that counts attempts and keeps errors for itself would be told to finish a
    schedule.
    """
    assert not LeasedTable.of(
        with_locks(attempts=Column(Integer), last_error=Column(Text))
    ).has_schedule


def test_single_table_inheritance() -> None:
    """One table with several kinds of rows could not have a pipeline per kind."""
    parent = with_locks(
        kind=Column(String(10)),
        __mapper_args__={"polymorphic_on": "kind", "polymorphic_identity": "a"},
    )
    child = type("Child", (parent,), {"__mapper_args__": {"polymorphic_identity": "b"}})
    for model in (parent, child):
        leased = LeasedTable.of(model)
        assert leased.table is parent.__table__
        assert leased.key is parent.__table__.c.id
    assert leased.name == "Child"


def test_columns_with_other_names_in_the_database() -> None:
    """A host with names of its own in the database would be told that columns are missing."""
    renamed = {
        name: Column(f"x_{name}", GOOD[name]().type, primary_key=name == "id")
        for name in ("id", *LOCK_COLUMNS)
    }
    leased = LeasedTable.of(with_locks(**renamed))
    assert leased.key.name == "x_id"
    assert leased.key_name == "id"
    assert [leased.column(name).name for name in LOCK_COLUMNS] == [
        f"x_{name}" for name in LOCK_COLUMNS
    ]
    assert {"id", "x_id", "lock_owner", "x_lock_owner"} <= set(leased.columns_by_name)


def test_a_relationship_and_a_computed_attribute_are_left_alone() -> None:
    """A model with more than plain columns would be refused, or its expressions would be taken
    for columns.
    """
    model = with_locks(name=Column(String))
    model.shout = column_property(func.upper(model.__table__.c.name))
    model.title = synonym("name")
    leased = LeasedTable.of(model)
    assert leased.columns_by_name["title"] is leased.columns_by_name["name"]
    assert "shout" not in leased.columns_by_name


def test_a_deferred_lock_column_fits() -> None:
    """A host that defers what it does not read would be refused."""
    assert LeasedTable.of(with_locks(lock_owner=deferred(Column(String)))).key_name == "id"


def test_columns_that_stamp_themselves_are_found() -> None:
    """Every heartbeat would change the host's `updated_at`."""
    assert [column.name for column in LeasedTable.of(Run).columns_with_onupdate] == ["updated_at"]
    assert LeasedTable.of(Volume).columns_with_onupdate == ()


# ---------------------------------------------------------------- what does not


@pytest.mark.parametrize("name", LOCK_COLUMNS)
def test_a_missing_lock_column(name: str) -> None:
    """The first claim would fail in the database, or never be seen to expire."""
    with pytest.raises(
        ModelError, match=f"Task has no column {name}; mix in LockColumns, or add {name}: "
    ) as caught:
        LeasedTable.of(model_of(**{name: None}))
    assert (caught.value.model, caught.value.column) == ("Task", name)


@pytest.mark.parametrize("name", [name for name in SCHEDULE_COLUMNS if name != "due_at"])
def test_an_unfinished_schedule(name: str) -> None:
    """A schedule would quietly not be used, since one column was forgotten."""
    with pytest.raises(
        ModelError,
        match=f"lacks {name}; mix in ScheduleColumns, or add the missing columns, or rename",
    ) as caught:
        LeasedTable.of(model_of(**{name: None}))
    assert (caught.value.model, caught.value.column) == ("Task", name)


@pytest.mark.parametrize(
    ("name", "column_type", "wanted"),
    [
        ("lock_token", String(32), "Uuid"),
        ("lock_token", Integer(), "Uuid"),
        ("lock_token", CHAR(32), "Uuid"),
        ("lock_owner", Integer(), "String"),
        ("lock_owner", Uuid(), "String"),
        ("attempts", String(), "Integer"),
        ("attempts", Boolean(), "Integer"),
        ("last_error", JSON(), "Text"),
        *((name, Integer(), "UtcDateTime or DateTime") for name in TIMES),
        *((name, String(30), "UtcDateTime or DateTime") for name in TIMES),
    ],
)
def test_a_column_of_another_type(name: str, column_type: Any, wanted: str) -> None:
    """The database would compare what cannot be compared, at the first claim or the first
    failure.
    """
    nullable = name not in ("due_at", "attempts")
    with pytest.raises(
        ModelError, match=f"Task.{name} has the type .*; it must be {wanted}"
    ) as caught:
        LeasedTable.of(model_of(**{name: Column(column_type, nullable=nullable)}))
    assert (caught.value.model, caught.value.column) == ("Task", name)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    "column_type",
    [DateTime(), TIMESTAMP(), wrapped(DateTime())],
    ids=["plain", "timestamp", "wrapped"],
)
def test_a_time_without_a_zone(name: str, column_type: Any) -> None:
    """A lease would end at another moment on every replica."""
    with pytest.raises(
        ModelError, match="a time without a zone means another moment on every replica"
    ) as caught:
        LeasedTable.of(model_of(**{name: Column(column_type)}))
    assert caught.value.column == name


@pytest.mark.parametrize("name", NULLABLE)
def test_a_column_that_cannot_be_null(name: str) -> None:
    """The row could never be unlocked again."""
    column = Column(GOOD[name]().type, nullable=False)
    with pytest.raises(
        ModelError, match=f"Task.{name} must be nullable: null means that it is free"
    ) as caught:
        LeasedTable.of(model_of(**{name: column}))
    assert (caught.value.model, caught.value.column) == ("Task", name)


def test_a_composite_key() -> None:
    """Rows would be told apart by half of their key."""
    with pytest.raises(
        ModelError, match=r"composite primary key \(id, part\); .*: add a surrogate key"
    ) as caught:
        LeasedTable.of(with_locks(part=Column(Integer, primary_key=True)))
    assert caught.value.model == "Task"


def test_joined_inheritance() -> None:
    """The lock columns would be in one table and the values in another, with no common guard."""
    parent = with_locks()
    body = {
        "__tablename__": "children",
        "id": Column(ForeignKey("tasks.id"), primary_key=True),
        "size": Column(Integer),
    }
    child = type("Child", (parent,), body)
    with pytest.raises(
        ModelError,
        match="Child is spread over several tables; a lease lives in one row of one table",
    ):
        LeasedTable.of(child)
    assert LeasedTable.of(parent).table is parent.__table__


def test_a_model_of_a_join() -> None:
    """An UPDATE would have no table to write to."""
    base = type("Base", (DeclarativeBase,), {})
    left = Table(
        "l", base.metadata, Column("id", Integer, primary_key=True), Column("lock_token", Uuid)
    )
    right = Table("r", base.metadata, Column("l_id", ForeignKey("l.id"), primary_key=True))
    both = type(
        "Both",
        (base,),
        {"__table__": left.join(right), "id": column_property(left.c.id, right.c.l_id)},
    )
    with pytest.raises(ModelError, match="Both is spread over several tables"):
        LeasedTable.of(both)


@pytest.mark.parametrize(
    "model", [object, int, "Volume", None, Volume(), DeclarativeBase, LockColumns]
)
def test_what_is_not_a_mapped_class(model: Any) -> None:
    """A host that set `model` wrongly would meet an AttributeError from within."""
    with pytest.raises(
        ModelError, match="is not a mapped class; set `model` to a declarative SQLAlchemy model"
    ):
        LeasedTable.of(model)


def test_a_mapping_that_does_not_hold_together() -> None:
    """A broken relationship of the host would come to light at the first claim."""
    broken = with_locks(volume=relationship("Missing"))
    with pytest.raises(ModelError, match=r"the mapping of Task does not hold together: .*Missing"):
        LeasedTable.of(broken)


def test_an_expression_in_the_place_of_a_column() -> None:
    """The claim would have no column to write to."""
    model = model_of(lock_owner=None, name=Column(String))
    model.lock_owner = column_property(func.upper(model.__table__.c.name))
    with pytest.raises(ModelError, match=r"Task\.lock_owner is not a column of the table"):
        LeasedTable.of(model)


@pytest.mark.parametrize(
    ("column_type", "owner", "fits"),
    [
        (String(4), "abcd", True),
        (String(4), "abcde", False),
        (wrapped(String(4)), "abcde", False),
        (Text(), "a" * 999, True),
    ],
)
def test_an_owner_fits_into_its_column(column_type: Any, owner: str, fits: bool) -> None:
    """PostgreSQL would refuse every claim; SQLite would not, until the host moves to PostgreSQL."""
    leased = LeasedTable.of(model_of(lock_owner=Column(column_type)))
    if fits:
        leased.check_owner(owner)
        return
    with pytest.raises(
        ModelError, match=r"abcde does not fit into Task\.lock_owner \(4 characters\); widen"
    ) as caught:
        leased.check_owner(owner)
    assert caught.value.column == "lock_owner"


# ---------------------------------------------------------------- what is asked of it later


class OnceBase(DeclarativeBase):
    """Keeps the model below out of the host's tables."""


class Once(LockColumns, ScheduleColumns, OnceBase):
    """A model with an attribute that is called otherwise in the database, and one that is
    deferred.
    """

    __tablename__ = "once"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str | None] = mapped_column("status")
    notes: Mapped[str | None] = mapped_column(deferred=True)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


def loaded(**values: object) -> Once:
    row = Once(**values)
    sqlalchemy_inspect(row)._commit_all(row.__dict__)
    return row


def test_a_value_as_it_was_read() -> None:
    """A host that changes its detached row would change what its outcome is compared with."""
    leased, row = LeasedTable.of(Once), loaded(id=1, state="a")
    column = leased.columns_by_name["state"]
    assert leased.value_as_read(row, column) == "a"
    row.state = "b"
    row.state = "c"
    assert leased.value_as_read(row, column) == "a"


def test_a_value_that_was_not_loaded() -> None:
    """An outcome would be compared with nothing, and always be found unchanged."""
    leased, row = LeasedTable.of(Once), loaded(id=1)
    with pytest.raises(
        OutcomeError, match=r"Once\.notes was not loaded; undefer it in options\(\)"
    ) as caught:
        leased.value_as_read(row, leased.columns_by_name["notes"])
    assert caught.value.column == "notes"


def test_a_value_that_was_not_loaded_and_is_set() -> None:
    """What the host wrote into its copy would pass for what the database held."""
    leased, row = LeasedTable.of(Once), loaded(id=1)
    row.notes = "mine"
    with pytest.raises(OutcomeError, match="was not loaded"):
        leased.value_as_read(row, leased.columns_by_name["notes"])


@pytest.mark.parametrize(("column_type", "kind"), [(Uuid(), uuid.UUID), (Uuid(as_uuid=False), str)])
def test_tokens_are_of_the_columns_kind_and_never_repeat(column_type: Any, kind: type) -> None:
    """The token in the ticket would never be equal to the one in the row; or two claims would
    share one.
    """
    leased = LeasedTable.of(model_of(lock_token=Column(column_type)))
    tokens = [leased.new_token() for _ in range(100)]
    assert {type(token) for token in tokens} == {kind}
    assert len(set(tokens)) == 100


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
