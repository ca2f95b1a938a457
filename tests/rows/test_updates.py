"""Tests of update maps: the one placeholder, and what an outcome may not write."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Integer, String
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column, synonym

from rowlock import NOW_PLACEHOLDER, LockColumns, resolve_now_placeholders
from rowlock.errors import OutcomeError
from rowlock.rows.leased_table import LOCK_COLUMNS, LeasedTable
from rowlock.rows.updates import NAMES_SHOWN_MAX, column_of, column_values

from ..host import Attachment, Run, Volume

NOW = datetime(2031, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
VOLUMES, RUNS = LeasedTable.of(Volume), LeasedTable.of(Run)
KEPT_WITH_SCHEDULE = ("attempts", "last_error", "parked_at")


class OddBase(DeclarativeBase):
    """Keeps the odd model out of the host's tables."""


class Oddly(LockColumns, OddBase):
    """A model whose attributes and columns have different names, one of them crosswise."""

    __tablename__ = "oddly"
    id: Mapped[int] = mapped_column("pk", primary_key=True)
    state: Mapped[str | None] = mapped_column("status", String)
    kind: Mapped[str | None] = mapped_column("state", String)
    attempts: Mapped[int | None]
    last_error: Mapped[str | None]


ODDLY = LeasedTable.of(Oddly)


# ---------------------------------------------------------------- the placeholder

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.just(NOW_PLACEHOLDER),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def expected_inside(value: Any) -> Any:
    """Return what a value inside of a JSON column becomes; written apart from the code under
    test.
    """
    if value is NOW_PLACEHOLDER:
        return "2031-05-17T12:00:00.123456+00:00"
    if isinstance(value, dict):
        return {key: expected_inside(inner) for key, inner in value.items()}
    return [expected_inside(inner) for inner in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=5))
def test_every_placeholder_is_resolved_at_any_depth(values: dict[str, Any]) -> None:
    """A placeholder would reach the driver, which cannot write it."""
    resolved = resolve_now_placeholders(values, NOW)
    assert resolved == {
        key: NOW if value is NOW_PLACEHOLDER else expected_inside(value)
        for key, value in values.items()
    }


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=5))
def test_the_hosts_own_map_is_not_touched(values: dict[str, Any]) -> None:
    """A retried write would carry the time of the first try."""
    before = copy.deepcopy(values)
    resolve_now_placeholders(values, NOW)
    assert values == before


def test_the_copy_shares_nothing_that_was_resolved() -> None:
    """A host that goes on filling its dict would change what is being written."""
    values: dict[str, Any] = {"result": {"steps": [{"at": NOW_PLACEHOLDER}]}}
    resolved = resolve_now_placeholders(values, NOW)
    values["result"]["steps"].append("later")
    assert resolved == {"result": {"steps": [{"at": NOW.isoformat()}]}}


def test_a_list_of_maps() -> None:
    """Maps for several rows would have to be resolved one by one, and might get several times."""
    values = [{"a": NOW_PLACEHOLDER}, {"b": [NOW_PLACEHOLDER]}, {}]
    assert resolve_now_placeholders(values, NOW) == [{"a": NOW}, {"b": [NOW.isoformat()]}, {}]


def test_tuples_and_what_derives_from_them() -> None:
    """A placeholder in a tuple would be overlooked, or a named tuple would become a plain one."""
    point = type("Point", (tuple,), {})((1, 2))
    resolved = resolve_now_placeholders({"a": (1, NOW_PLACEHOLDER), "b": point}, NOW)
    assert resolved == {"a": (1, NOW.isoformat()), "b": point}
    assert resolved["b"] is point


def test_keys_may_be_attributes() -> None:
    """A map with column attributes for keys could not carry the time."""
    assert resolve_now_placeholders({Volume.active_at: NOW_PLACEHOLDER}, NOW) == {
        Volume.active_at: NOW
    }


def test_the_placeholder_prints_as_it_is_spelt_and_survives_a_copy() -> None:
    """A log would show nonsense; a copied map would hold a placeholder that nobody resolves."""
    assert repr(NOW_PLACEHOLDER) == "NOW_PLACEHOLDER"
    assert copy.deepcopy(NOW_PLACEHOLDER) is NOW_PLACEHOLDER


# ---------------------------------------------------------------- which column a key means


@pytest.mark.parametrize("key", ["disk_id", Volume.disk_id, Volume.__table__.c.disk_id])
def test_a_column_by_any_of_its_names(key: object) -> None:
    """A host would have to know which of three spellings we want."""
    assert column_values(VOLUMES, {key: "d-1"}) == {Volume.__table__.c.disk_id: "d-1"}


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("state", "status"),
        (Oddly.state, "status"),
        ("kind", "state"),
        (Oddly.kind, "state"),
        ("status", "status"),
        (Oddly.__table__.c.state, "state"),
        (Oddly.__table__.c.status, "status"),
    ],
)
def test_an_attribute_comes_before_a_column_of_its_name(key: object, column: str) -> None:
    """The value would be written into another column than the attribute of that name."""
    assert column_of(ODDLY, key).name == column


@pytest.mark.parametrize(
    "key",
    [
        "disc_id",
        "",
        "attachments",
        7,
        None,
        Attachment.name,
        Attachment.__table__.c.status,
        Attachment.status,
        Run.status,
    ],
)
def test_a_key_that_is_no_column_of_the_model_is_refused(key: object) -> None:
    """A typing error, or another model's attribute of the same name, would be written nowhere or
    into the wrong column.
    """
    with pytest.raises(OutcomeError, match=r"Volume has no column .*; it has active_at, disk_id, "):
        column_values(VOLUMES, {key: 1})


def test_a_synonym_is_its_column() -> None:
    """Synonyms are accepted as their column, by name and by attribute; of a synonym, too."""

    class Base(DeclarativeBase):
        pass

    class Job(LockColumns, Base):
        __tablename__ = "jobs"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column("status")
        status = synonym("state")
        phase = synonym("status")

        @hybrid_property
        def shout(self) -> str:
            return self.state + "!"

        @shout.inplace.update_expression
        @classmethod
        def _write_shout(cls, value: str) -> Any:
            return [(cls.state, value[:-1])]

    leased = LeasedTable.of(Job)
    for key in ("status", "phase", Job.status, Job.phase):
        assert column_of(leased, key) is Job.__table__.c.status
    with pytest.raises(OutcomeError, match="in the values twice"):
        column_values(leased, {"state": "a", "phase": "b"})
    for hybrid in ("shout", Job.shout):
        with pytest.raises(OutcomeError, match="is a hybrid, so write the columns behind it"):
            column_of(leased, hybrid)


def test_a_relationship_is_no_column() -> None:
    """A host that assigns related rows would believe that they were written."""
    with pytest.raises(OutcomeError, match="Volume has no column 'attachments'"):
        column_values(VOLUMES, {Volume.attachments: []})


def test_an_attribute_of_an_alias_means_the_column() -> None:
    """A host that wrote `ready` over an alias would be refused for it."""
    assert column_of(VOLUMES, aliased(Volume).status) is Volume.__table__.c.status


def test_the_error_names_the_column_and_lists_few() -> None:
    """The text stored in a wide table's row would be a list of its columns."""
    columns = {f"c{n:03}": mapped_column(String) for n in range(NAMES_SHOWN_MAX * 2)}
    key = mapped_column(Integer, primary_key=True)
    wide = type("Wide", (LockColumns, OddBase), {"__tablename__": "wide", "id": key, **columns})
    with pytest.raises(OutcomeError) as caught:
        column_values(LeasedTable.of(wide), {"disc_id": 1})
    assert caught.value.column == "disc_id"
    assert len(caught.value.args[0].split(", ")) == NAMES_SHOWN_MAX


# ---------------------------------------------------------------- what an outcome may not write


@pytest.mark.parametrize("name", LOCK_COLUMNS)
@pytest.mark.parametrize("leased", [VOLUMES, RUNS, ODDLY], ids=lambda leased: leased.name)
def test_lock_columns_are_refused(leased: LeasedTable, name: str) -> None:
    """An outcome could keep its own lease, or take another's."""
    with pytest.raises(
        OutcomeError, match=f"{name} is written by rowlock; take it out of the values"
    ) as caught:
        column_values(leased, {name: None})
    assert caught.value.column == name
    with pytest.raises(OutcomeError, match="is written by rowlock"):
        column_values(leased, {leased.attribute(name): None})


@pytest.mark.parametrize("name", KEPT_WITH_SCHEDULE)
def test_what_counts_failures_is_refused(name: str) -> None:
    """A poison row could reset its own count and never be parked."""
    with pytest.raises(OutcomeError, match=f"{name} is written by rowlock"):
        column_values(RUNS, {name: None})


@pytest.mark.parametrize("name", ["due_at", "deadline_at", "status"])
def test_a_schedule_may_be_written(name: str) -> None:
    """A host could not say when the row wants to be worked on next."""
    assert column_values(RUNS, {name: NOW}) == {Run.__table__.c[name]: NOW}


@pytest.mark.parametrize("name", ["attempts", "last_error"])
def test_columns_of_the_hosts_own_are_its_own(name: str) -> None:
    """A host without a schedule could not write a column that happens to be called like one of
    ours.
    """
    assert column_values(ODDLY, {name: 3}) == {Oddly.__table__.c[name]: 3}


@pytest.mark.parametrize(
    ("leased", "key"), [(VOLUMES, "id"), (VOLUMES, Volume.id), (ODDLY, "id"), (ODDLY, "pk")]
)
def test_the_key_is_refused(leased: LeasedTable, key: object) -> None:
    """The row would become another one under the guard."""
    with pytest.raises(OutcomeError, match="is the primary key; it cannot be changed"):
        column_values(leased, {key: 1})


def test_a_column_named_twice_is_refused() -> None:
    """Which of the two values is written would be left to chance."""
    with pytest.raises(OutcomeError, match=r"Volume\.status is in the values twice"):
        column_values(VOLUMES, {"status": "a", Volume.status: "b"})
    with pytest.raises(OutcomeError, match=r"Oddly\.status is in the values twice"):
        column_values(ODDLY, {"state": "a", "status": "b"})


def test_no_values() -> None:
    """An outcome that only says "done" would be refused."""
    assert column_values(VOLUMES, {}) == {}
