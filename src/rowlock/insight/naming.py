"""Finds what a person names: a model by its class, its name or its table's, a pipeline by its name,
and a row by the text of its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.errors import AppError
from rowlock.insight.asking.key_text import key_of_text, may_be_key, what_it_is
from rowlock.insight.shown import shown
from rowlock.pipelines.pipeline import Pipeline
from rowlock.rows.leased_table import LeasedTable

INTEGER_MAX: Final = 2**63 - 1
"""Largest number that a key can be."""


def mapped_model(given: type[Any] | str, pipelines: Collection[Pipeline[Any]]) -> type[Any]:
    """Return the mapped class that is meant.

    Raises:
        AppError: no pipeline's registry has one of that name.
    """
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
    """Return the pipeline that is meant, by itself or by its name.

    Raises:
        AppError: there is none of that name.
    """
    by_name = {pipeline.name: pipeline for pipeline in pipelines}
    name = given if isinstance(given, str) else given.name
    if name in by_name:
        return by_name[name]
    instead = _instead(name, sorted(by_name))
    raise AppError(f"no pipeline of this app is named {shown(name)}{instead}")


def read_key(leased: LeasedTable, given: object) -> Any:
    """Return the key that is meant: text is read by the type of the key.

    Raises:
        AppError: it is no key of the table.
    """
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
    """Return whether rows of `model` may be those of a pipeline, or the other way round."""
    return issubclass(pipeline.model, model) or issubclass(model, pipeline.model)


def database_name(engine: AsyncEngine | Engine) -> str:
    """Return the kind, the host and the name of a database, and nothing secret."""
    name = PurePath(engine.url.database or "").name
    host = f"{engine.url.host}/" if engine.url.host else ""
    return shown(f"{engine.dialect.name} {host}{name}")


def _instead(given: str, names: list[str]) -> str:
    nearest = get_close_matches(given, names, n=1)
    if nearest:
        return f"; {nearest[0]} may be meant"
    return f"; there are {', '.join(names)}" if names else "; it has no pipelines"
