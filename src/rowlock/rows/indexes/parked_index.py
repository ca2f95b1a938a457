"""The index that finds rows which were set aside, for models and for migrations.

The one idea: parked rows are few among many and stand in no index of claims, so without one of
their own nobody can count or list them but by reading the table. It mentions `parked_at` and the
key alone, which no claim and no heartbeat changes: only parking a row and putting it back write it.

Not here: the steps that build it in a table of a host (``migrations.py``).
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Index
from sqlalchemy import column as named_column

from rowlock.errors import ModelError
from rowlock.rows.indexes.due_index import KEY, SaysReady, is_of_pipeline
from rowlock.rows.model_check import mapper_of, single_key, single_table, spells_schedule
from rowlock.rows.row_dialect import partial_index_options

PARKED: Final = "parked_at"
"""The column of `ScheduleColumns` that says since when a row is set aside."""


def parked_index(
    of: str | type[Any] | SaysReady, *, key: str | None = None, name: str | None = None
) -> Index:
    """Return the index with which parked rows are counted and listed, oldest first, by `Insight`,
    ``rowlock status`` and the dashboard; where ``create_all`` and Alembic's autogenerate look for
    it.

    ``parked_index(Volume)``, below the class, is added to the table of the model, as is
    ``parked_index(VolumePipeline)``.
    ``parked_index("volumes")`` is for ``__table_args__``, where there is no model yet.

    Args:
        of: a mapped class with `ScheduleColumns`, a pipeline of one or its class, or the name of
            the host's table.
        key: the primary key, ``id`` by default. Of a mapped class it is known.
        name: of the index, ``ix_<table>_parked_at`` by default.

    Raises:
        ModelError: the model has no schedule, so that its rows are never parked; its table has an
            index of that name; the key of a mapped class was named; a name is none.
    """
    if isinstance(of, str):
        if not of or not isinstance(key, str | None) or key == "":
            raise ModelError(
                "parked_index takes the names of a table and of its key, as in"
                f' parked_index("jobs", key="number"), not {of!r:.100} and {key!r:.100}',
                model=of,
            )
        columns, options = parked_index_parts(key or KEY)
        return Index(name or parked_index_name(of), *columns, **options)
    whose = getattr(of, "__name__", type(of).__name__)
    if key is not None:
        raise ModelError(f"parked_index({whose}) knows the key; leave it out", model=whose)
    mapped: Any = getattr(of, "model", of) if is_of_pipeline(of) else of
    mapper = mapper_of(mapped, configured=False)
    table, own_key = single_table(mapper), single_key(mapper)
    if not spells_schedule(mapper):
        raise ModelError(
            f"rows of {whose} are never parked, since it has no schedule; mix in ScheduleColumns,"
            " or leave parked_index out",
            model=whose,
        )
    name = name or parked_index_name(table.name)
    if any(other.name == name for other in table.indexes):
        raise ModelError(
            f"{table.name} has an index named {name} already; give this one another name:"
            f" parked_index({whose}, name=...)",
            model=table.name,
        )
    parked_at = mapper.columns[PARKED]
    return Index(name, parked_at, own_key, **partial_index_options(parked_at.is_not(None)))


def parked_index_name(table_name: str) -> str:
    """Return the name of the index if none is given."""
    return f"ix_{table_name}_{PARKED}"


def parked_index_parts(key: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns and the options of the index, as ``Index`` and ``op.create_index`` take
    them.
    """
    return [PARKED, key], partial_index_options(named_column(PARKED).is_not(None))
