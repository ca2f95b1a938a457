"""The databases that rowlock knows: one `Dialect` each, found by SQLAlchemy's name of the database.

The one idea: a `Dialect` names its parts, and what a process does not use is never imported. Each
part has an abstract class and, beside it, the `DialectPart` that finds its implementations.

Source: SQLAlchemy, `sqlalchemy.dialects.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import UnsupportedDialectError
from rowlock.redaction import add_database_packages

ENTRY_POINTS = "rowlock.dialects"
"""The group of entry points in which other packages offer dialects."""

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One database.

    Attributes:
        name: SQLAlchemy's name of it, such as ``engine.dialect.name``.
        drivers: top-level packages of its drivers: an exception of theirs is the database's.
        parts: for the name of each `DialectPart`, where the class is that implements it:
            ``"package.module:Class"``. It is made without arguments, once, when first asked for.
        has_partial_indexes: whether ``Index`` takes ``<name>_where``.
    """

    name: str
    drivers: frozenset[str]
    parts: Mapping[str, str]
    has_partial_indexes: bool = False


class DialectPart(Generic[PartT]):
    """The implementations of `kind`, an abstract class, for each database."""

    def __init__(self, name: str, kind: type[Any]) -> None:
        self._name, self._kind = name, kind
        self._loaded: dict[str, PartT] = {}

    def on(self, dialect_name: str) -> PartT:
        """Return the implementation for a database; `UnsupportedDialectError` if it is unknown, or
        lacks the part.
        """
        # On the way of every statement: one look into a dictionary.
        try:
            return self._loaded[dialect_name]
        except KeyError:
            return self._load(dialect_name)

    def of(self, connection: AsyncConnection) -> PartT:
        return self.on(connection.dialect.name)

    def _load(self, dialect_name: str) -> PartT:
        parts, kind = dialect_named(dialect_name).parts, self._kind
        wanted = f"{kind.__module__}.{kind.__qualname__}"
        if self._name not in parts:
            raise UnsupportedDialectError(
                f"the dialect {dialect_name!r} lacks {self._name!r}; name a class for it, an"
                f" implementation of {wanted}",
                dialect_name=dialect_name,
            )
        module, _, attribute = parts[self._name].partition(":")
        made = getattr(import_module(module), attribute)()
        if not isinstance(made, kind):
            raise UnsupportedDialectError(
                f"{self._name!r} of the dialect {dialect_name!r} is a {type(made).__name__}; derive"
                f" it from {wanted}",
                dialect_name=dialect_name,
            )
        return self._loaded.setdefault(dialect_name, cast("PartT", made))


def register(dialect: Dialect) -> None:
    """Make a database known to this process; another dialect of the same name is replaced, unless
    parts of it are in use.
    """
    _known[dialect.name] = dialect
    add_database_packages(dialect.drivers)


def known_dialects() -> tuple[Dialect, ...]:
    """Return the dialects that are known so far, in that order."""
    return tuple(_known.values())


def driver_packages() -> frozenset[str]:
    return frozenset().union(*(dialect.drivers for dialect in _known.values()))


def dialect_named(name: str) -> Dialect:
    """Return the dialect for SQLAlchemy's name of the database, which a package may offer;
    `UnsupportedDialectError` if there is none.
    """
    if name not in _known:
        for offered in entry_points(group=ENTRY_POINTS, name=name):
            register(offered.load())
    if name not in _known:
        raise UnsupportedDialectError(
            f"rowlock runs on {' and '.join(_known)}, not on {name!r}; bind the session factory to"
            " one of them, or install or register a dialect for it (documentation: Design, Add a"
            " database)",
            dialect_name=name,
        )
    return _known[name]


_known: dict[str, Dialect] = {}
