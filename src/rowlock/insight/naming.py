"""Finds what a person names: a model by its class, its name or its table's, a pipeline by its name,
and a row by the text of its key, read by the type of its column.

The one idea: a key that cannot be one is refused before the database is asked: what it says of a
value of another type would look like a fault of the pipeline.
"""

from __future__ import annotations

import uuid
from ast import literal_eval
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, TypeGuard, cast

from sqlalchemy import Engine, Uuid
from sqlalchemy import Enum as EnumType
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock import Pipeline, UtcDateTime
from rowlock.errors import AppError
from rowlock.insight.shown import shown
from rowlock.spi import LeasedTable

# ---------------------------------------------------------------- keys as text


NAMES_MAX: Final = 10  # how many values of an enumeration are named


def key_of_text(kind: TypeEngine[Any], text: str) -> Any:
    """Return the key that `text` names; raises ValueError with what a key of the column is."""
    # A shell hands on bytes that are no UTF-8 as surrogates.
    is_storable = "\x00" not in text and not any("\ud800" <= each <= "\udfff" for each in text)
    readers = [_reader_of(kind, class_of(kind))]
    if _binds_itself(kind):
        # What its values are is the host's to know; that of their storage was the best guess.
        readers += [str, uuid.UUID]
    for reader in readers if is_storable else ():
        # Of the host's own types whatever they raise.
        with suppress(Exception):
            value = reader(text)
            if _binds_itself(kind):
                kind.process_bind_param(value, DefaultDialect())
            return value
    raise ValueError(what_it_is(kind))


def may_be_key(kind: TypeEngine[Any], value: object) -> bool:
    """Whether `value`, which is no text, can be a key; of a host's type the database decides."""
    value_class = class_of(kind)
    if _binds_itself(kind) or value_class not in _STRICT:
        return True
    return isinstance(value, value_class) and (value_class is bool or not isinstance(value, bool))


def class_of(kind: TypeEngine[Any]) -> type[Any]:
    if isinstance(kind, TypeDecorator):
        return class_of(kind.impl_instance)
    try:
        found: type[Any] = kind.python_type
    except NotImplementedError:
        return str
    return found


def what_it_is(kind: TypeEngine[Any]) -> str:
    """Return what a key of such a column is, in words."""
    value_class, names = class_of(kind), _names_of(kind)
    if names:
        more = ", ..." if len(names) > NAMES_MAX else ""
        return f"one of {', '.join(names[:NAMES_MAX])}{more}"
    if isinstance(kind, Uuid):
        return "a UUID"
    if value_class is str and isinstance(kind, TypeDecorator):
        return f"a {type(kind).__name__} that no text gives"
    return _WORDS.get(value_class, "text")


def _reader_of(kind: TypeEngine[Any], value_class: type[Any]) -> Callable[[str], Any]:
    if issubclass(value_class, Enum):
        # It is shown as `Kind.name`.
        return lambda text: value_class[text.rpartition(".")[2]]
    names = _names_of(kind)
    if names:
        return lambda text: names[names.index(text)]
    if isinstance(kind, Uuid) and value_class is str:
        return lambda text: str(uuid.UUID(text))
    if value_class is datetime:
        return lambda text: _zoned(kind, datetime.fromisoformat(text))
    return _READERS.get(value_class, str)


def _zoned(kind: TypeEngine[Any], time: datetime) -> datetime:
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return utc if getattr(kind, "timezone", False) else utc.replace(tzinfo=None)


def _binds_itself(kind: TypeEngine[Any]) -> TypeGuard[TypeDecorator[Any]]:
    # Ours asks which database it is, and takes what was read as a time.
    is_host_type = isinstance(kind, TypeDecorator) and not isinstance(kind, UtcDateTime)
    cls, plain = cast("Any", type(kind)), cast("Any", TypeDecorator)
    return is_host_type and cls.process_bind_param is not plain.process_bind_param


def _names_of(kind: TypeEngine[Any]) -> list[str]:
    return [str(name) for name in kind.enums] if isinstance(kind, EnumType) else []


def _bytes(text: str) -> bytes:
    found = literal_eval(text)
    if not isinstance(found, bytes):
        raise ValueError(text)
    return found


_READERS: Final[Mapping[type[Any], Callable[[str], Any]]] = {
    int: int,
    uuid.UUID: uuid.UUID,
    Decimal: Decimal,
    float: float,
    date: date.fromisoformat,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    bytes: _bytes,
}
_STRICT: Final = frozenset({int, uuid.UUID, date, datetime, bool, bytes})
"""Classes of keys for which drivers take nothing else."""
_WORDS: Final[Mapping[type[Any], str]] = {
    int: "a whole number",
    uuid.UUID: "a UUID",
    Decimal: "a number",
    float: "a number",
    date: "a date, such as 2026-11-22",
    datetime: "a time, such as 2026-11-22T03:14:05+00:00",
    bool: "true or false",
    bytes: "bytes, such as b'key'",
}


# ---------------------------------------------------------------- names


INTEGER_MAX: Final = 2**63 - 1  # largest number that a key can be


def mapped_model(given: type[Any] | str, pipelines: Collection[Pipeline[Any]]) -> type[Any]:
    """Return the mapped class that is meant; raises AppError if no registry has it."""
    if isinstance(given, type):
        return given
    models = {
        mapper.class_: mapper.local_table
        for pipeline in pipelines
        for mapper in pipeline.leased.mapper.registry.mappers
    }
    worked_on = {pipeline.model for pipeline in pipelines}
    fitting = [
        model
        for model, table in models.items()
        if given in {model.__name__, getattr(table, "name", None)}
    ]
    # Of several classes of one table that is meant on which a pipeline works.
    fitting.sort(key=lambda model: (model not in worked_on, model.__name__ != given))
    if fitting:
        return fitting[0]
    names = sorted(model.__name__ for model in worked_on)
    raise AppError(f"no model of this app is named {shown(given)}{_instead(given, names)}")


def pipeline_named(given: Pipeline[Any] | str, pipelines: Iterable[Pipeline[Any]]) -> Pipeline[Any]:
    """Return the pipeline that is meant; raises AppError if there is none of that name."""
    by_name = {pipeline.name: pipeline for pipeline in pipelines}
    name = given if isinstance(given, str) else given.name
    if name in by_name:
        return by_name[name]
    instead = _instead(name, sorted(by_name))
    raise AppError(f"no pipeline of this app is named {shown(name)}{instead}")


def read_key(leased: LeasedTable, given: object) -> Any:
    """Return the key that is meant, text by the type of the key; raises AppError if it is none."""
    kind = leased.key.type
    try:
        if isinstance(given, str):
            given = key_of_text(kind, given)
        elif not may_be_key(kind, given):
            raise ValueError(what_it_is(kind))
        if isinstance(given, int) and abs(given) > INTEGER_MAX:
            raise ValueError(what_it_is(kind))
    except ValueError as error:
        raise AppError(
            f"{shown(given)} is no key of {leased.name}: its {leased.key.name} is {error}"
        ) from None
    return given


def is_of(pipeline: Pipeline[Any], model: type[Any]) -> bool:
    """Whether rows of `model` may be those of a pipeline, or the other way round."""
    return issubclass(pipeline.model, model) or issubclass(model, pipeline.model)


def database_name(engine: AsyncEngine | Engine) -> str:
    """Return the kind, the host and the name of a database, without user or password."""
    name = PurePath(engine.url.database or "").name
    host = f"{engine.url.host}/" if engine.url.host else ""
    return shown(f"{engine.dialect.name} {host}{name}")


def _instead(given: str, names: list[str]) -> str:
    nearest = get_close_matches(given, names, n=1)
    if nearest:
        return f"; {nearest[0]} may be meant"
    return f"; there are {', '.join(names)}" if names else "; it has no pipelines"
