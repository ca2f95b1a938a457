"""What becomes of a database that rowlock does not know, or that another package adds."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rowlock import ResourceLocker
from rowlock.dialects import (
    Dialect,
    DialectPart,
    contract,
    dialect_named,
    driver_packages,
    known_dialects,
    register,
    registry,
)
from rowlock.errors import UnsupportedDialectError
from rowlock.insight import insight_dialect
from rowlock.locks import locker
from rowlock.locks.locker import InMemoryLocker
from rowlock.redaction import text_of
from rowlock.streams.dialects import stream_dialect

PARTS = {
    part
    for module in (contract, locker, stream_dialect, insight_dialect)
    for part in vars(module).values()
    if isinstance(part, DialectPart)
}
HERE = "tests_of_a_dialect"


class DriverError(Exception):
    __module__ = "mariadriver.errors"


@pytest.fixture(autouse=True)
def registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr("rowlock.redaction._database_packages", {"sqlalchemy", *driver_packages()})


def maria(**parts: str) -> Dialect:
    return Dialect("mariadb", frozenset({"mariadriver"}), parts)


def lockers() -> DialectPart[ResourceLocker]:
    return DialectPart("locker", ResourceLocker)


@pytest.mark.parametrize("dialect", known_dialects(), ids=lambda dialect: dialect.name)
def test_each_has_all_parts(dialect: Dialect) -> None:
    """A part would be missed when a row needs it."""
    for part in PARTS:
        part.on(dialect.name)
    assert len(dialect.parts) == len(PARTS)


def test_an_unknown_database_is_refused_with_advice() -> None:
    """A host would meet a KeyError, and not know whether it or rowlock is wrong."""
    with pytest.raises(
        UnsupportedDialectError, match=r"register a dialect for it.*Add a database"
    ) as caught:
        dialect_named("mariadb")
    assert caught.value.dialect_name == "mariadb"


def test_a_registered_database_is_known() -> None:
    """Nobody could add a database without a change of rowlock."""
    register(maria(locker="rowlock.locks.locker:InMemoryLocker"))
    part = lockers()
    assert isinstance(part.on("mariadb"), InMemoryLocker)
    assert part.on("mariadb") is part.on("mariadb"), "it is made once"


def test_an_installed_package_offers_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host would have to import the package before it builds its pipelines, and in each
    process.
    """
    offered, asked = maria(), list[dict[str, Any]]()

    def found(**wanted: Any) -> list[EntryPoint]:
        asked.append(wanted)
        return [EntryPoint("mariadb", f"{HERE}:MARIADB", "rowlock.dialects")]

    monkeypatch.setattr(registry, "entry_points", found)
    monkeypatch.setattr(EntryPoint, "load", lambda _: offered)
    assert dialect_named("mariadb") is offered
    assert dialect_named("mariadb") is offered
    assert asked == [{"group": "rowlock.dialects", "name": "mariadb"}]


def test_a_part_that_is_missing_is_named() -> None:
    """Whoever adds a database would read a KeyError, or an error about None, from the middle of
    a claim.
    """
    register(maria())
    with pytest.raises(
        UnsupportedDialectError,
        match=r"'mariadb' lacks 'locker'.*rowlock.locks.locker.ResourceLocker",
    ):
        lockers().on("mariadb")


def test_a_part_of_another_kind_is_refused() -> None:
    """A method that is missing would be noticed by the first row that needs it."""
    register(maria(locker="builtins:object"))
    with pytest.raises(
        UnsupportedDialectError,
        match=r"is a object; derive it from rowlock.locks.locker.ResourceLocker",
    ):
        lockers().on("mariadb")


def test_errors_of_its_driver_are_a_databases() -> None:
    """Values of rows would be logged, since nobody takes the text for a statement's."""
    error = DriverError("it is refused\nkey 'ann@example.org'")
    assert "ann" in text_of(error), "not known so far"
    register(maria())
    assert text_of(error) == "it is refused"
    assert "mariadriver" in driver_packages()
