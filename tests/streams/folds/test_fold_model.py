"""Which models a fold can write to, and what a handler may leave in a row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    CHAR,
    Boolean,
    Computed,
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Integer,
    Numeric,
    String,
    func,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from rowlock import LockColumns, ModelError, ScheduleColumns
from rowlock.streams.folds import FoldCodec, FoldedRow, FoldModel, StoredRow


def models() -> Iterator[Any]:
    """Yield models that cannot be folded into, how, and why."""

    class Host(DeclarativeBase):
        pass

    def case(name: str, why: str, columns: dict[str, Any], **options: Any) -> Any:
        notes = {key: Mapped[Any] for key in columns if not key.startswith("__")}
        space = {"__tablename__": name, "__annotations__": notes, **columns}
        return pytest.param(type(name, (Host,), space), options, why, id=name)

    def key(*types: Any, **options: Any) -> dict[str, Any]:
        return {"key": mapped_column(*types, primary_key=True, **options)}

    yield pytest.param(Counter, {}, "not a mapped class", id="no model")
    yield case("counted", "given by the database.*autoincrement=False", key(Integer))
    yield case("identity", "given by the database", key(Integer, Identity()))
    yield case("from_server", "given by the database", key(String(5), server_default="a"))
    yield case("surrogate", "has a default", key(String(36), default=lambda: str(uuid4())))
    yield case("computed", "given by the database", key(String(5), Computed("'a'")))
    yield case("collated", "two keys for one row", key(String(5, collation="NOCASE")))
    yield case("padded", "two keys for one row", key(CHAR(5)))
    for type_ in (Numeric(5, 2), Boolean(), Enum("a", "b"), DateTime(timezone=True)):
        name = type(type_).__name__
        yield case(f"by_{name}", "keys are texts, whole numbers", key(type_, autoincrement=False))
    two = {**key(String(5)), "other": mapped_column(String(5), primary_key=True)}
    yield case("two_keys", r"primary key is \(key, other\).*pass by=", two)
    versions = {
        **key(String(5)),
        "version": mapped_column(Integer),
        "__mapper_args__": {"version_id_col": None},
    }
    versions["__mapper_args__"]["version_id_col"] = versions["version"]
    yield case("versions", "version_id_col", versions)
    kinds = {
        **key(String(5)),
        "kind": mapped_column(String(5)),
        "__mapper_args__": {"polymorphic_on": "kind", "polymorphic_identity": "a"},
    }
    animal = case("animals", "class of a hierarchy", kinds)
    yield animal
    joined = {"id": mapped_column(ForeignKey("animals.key"), primary_key=True)}
    is_dog = {"__mapper_args__": {"polymorphic_identity": "d"}, "__annotations__": {}}
    dog = type("dogs", animal.values[:1], {"__tablename__": "dogs", **is_dog, **joined})
    yield pytest.param(dog, {}, "class of a hierarchy", id="dogs")
    for name, options in (
        ("onupdate", {"onupdate": func.now()}),
        ("server_onupdate", {"server_onupdate": text("x")}),
    ):
        columns = {**key(String(5)), "at": mapped_column(Integer, **options)}
        yield case(name, "leave out cache=True", columns, is_cached=True)
    doubled = {**key(String(5)), "two": mapped_column(Integer, Computed("1 + 1"))}
    yield case("doubled", "leave out cache=True", doubled, is_cached=True)

    class DataHost(MappedAsDataclass, DeclarativeBase):
        pass

    class Named(DataHost):
        __tablename__ = "named"
        key: Mapped[str] = mapped_column(primary_key=True)
        name: Mapped[str]

    yield pytest.param(Named, {}, "of its key alone .*'name'.*init=False", id="constructor")


class Counter:
    """No model."""


@pytest.mark.parametrize(("model", "options", "why"), [*models()])
def test_what_cannot_be_folded_into(model: Any, options: dict[str, bool], why: str) -> None:
    """A row would be written by two shards, or be found by no key, when payments have come."""
    with pytest.raises(ModelError, match=why) as caught:
        FoldModel(model, is_keyed_by_host=False, **{"is_cached": False, **options})
    assert caught.value.model == model.__name__


class Base(DeclarativeBase):
    """The host's."""


class Account(LockColumns, ScheduleColumns, Base):
    """A row that a pipeline works on, too."""

    __tablename__ = "accounts"
    key: Mapped[str] = mapped_column(String(50), primary_key=True)
    name: Mapped[str]
    cents: Mapped[int] = mapped_column(default=0)
    note: Mapped[str | None]
    twice: Mapped[int] = mapped_column(Computed("cents * 2"))
    tag: Mapped[UUID] = mapped_column(default=uuid4)


MODEL = FoldModel(Account, is_keyed_by_host=False, is_cached=False)
CODEC = FoldCodec(MODEL)
STORED = {
    **dict.fromkeys(MODEL.columns),
    "key": "a",
    "name": "Ann",
    "cents": 5,
    "twice": 10,
    "tag": UUID(int=1),
    "due_at": datetime(2026, 1, 1),  # noqa: DTZ001
    "attempts": 0,
}


def stored() -> FoldedRow:
    return FoldedRow(dict(STORED), StoredRow(STORED, "1"))


def set_(name: str, value: Any) -> Any:
    return lambda row: setattr(row, name, value)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (set_("key", "b"), ValueError, "Account.key is the key of its row"),
        (set_("twice", 5), ValueError, "twice is not a handler's to change"),
        (set_("lock_owner", "me"), ValueError, "lock_owner is not a handler's to change"),
        (set_("name", None), ValueError, "needs name: never null"),
        (set_("cents", Account.cents + 1), TypeError, "an expression of SQL"),
        (set_("cents", Account.cents), TypeError, "an expression of SQL"),
        (lambda row: delattr(row, "note"), ValueError, "set it to None"),
    ],
)
def test_what_a_handler_must_not_leave(change: Any, error: type[Exception], why: str) -> None:
    """The database would refuse it for a whole shard; or one key write over another's row."""
    (held,) = CODEC.decode_many([stored()])
    change(held.row)
    with pytest.raises(error, match=why):
        CODEC.encode(held)


def test_a_new_row() -> None:
    """It would lack what its model gives it, or be the row of another key."""
    fresh = CODEC.fresh("a")
    assert (fresh.row.key, fresh.row.cents, fresh.row.note, fresh.row.tag) == ("a", 0, None, None)
    with pytest.raises(ValueError, match="needs name"):
        CODEC.encode(fresh)
    fresh.row.name = "Ann"
    after = CODEC.encode(fresh)
    assert after.stored is None
    assert (after.values["name"], after.values["tag"]) == ("Ann", None)
    # Once more within the transaction: it is as new as before.
    (again,) = CODEC.decode_many([after])
    assert again.row.tag is None
    again.row.note = "n"
    assert CODEC.encode(again).values["note"] == "n"
    again.row.note = None
    assert CODEC.encode(again).values["note"] is None
    fresh = CODEC.fresh("a")
    fresh.row.name, fresh.row.key = "Ann", "b"
    with pytest.raises(ValueError, match="the key of its row"):
        CODEC.encode(fresh)
    with pytest.raises(ValueError, match=r"primary key of Account is \(key\)"):
        CODEC.fresh(("a", "b"))


def test_what_is_not_changed_is_the_same() -> None:
    """A row would be written although nothing is new."""
    row = stored()
    (held,) = CODEC.decode_many([row])
    held.row.cents = 7
    held.row.cents = 5
    assert CODEC.encode(held) is row
    held.row.cents = 7
    after = CODEC.encode(held)
    assert MODEL.changed(after.values, row.values) == ["cents"]
    assert (after.stored, row.values["cents"]) == (row.stored, 5)


def test_by_and_the_primary_key() -> None:
    """Rows would be looked for under half a key."""
    one = MODEL.checked(lambda event: event)
    assert one("a") == "a"
    with pytest.raises(ValueError, match="the primary key of Account is key"):
        one(("a",))

    class Host(DeclarativeBase):
        pass

    class Pair(Host):
        __tablename__ = "pairs"
        first: Mapped[str] = mapped_column(primary_key=True)
        second: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)

    pair = FoldModel(Pair, is_keyed_by_host=True, is_cached=False)
    assert pair.checked(lambda event: event)(("a", 1)) == ("a", 1)
    with pytest.raises(ValueError, match=r"the primary key of Pair is \(first, second\)"):
        pair.checked(lambda event: event)("a")
    assert pair.key_of(("a", "1")) == ("a", 1)
    # Two texts of one number would be one row of two shards.
    for wrong in ("b", "007"):
        with pytest.raises(ValueError, match=rf"'{wrong}' is no value of Pair\.second"):
            pair.key_of(("a", wrong))
