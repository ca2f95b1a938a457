"""Values of many rows as array parameters: one per column, and one plan for any number of rows.

The one idea: ``unnest`` makes rows of arrays again, so that what is written or looked up for many
rows is one statement, one round trip, and one text that the driver prepares once. Both drivers bind
such arrays from plain lists. The rows may be for any table, leased or not.

Not here: which types fit (`fits_array`), and what is done with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, bindparam, column, func
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.dialects.postgresql.column_kinds import unbounded
from rowlock.rows.assignments import Slot


def unnested(slots: Sequence[Slot], *, name: str, prefix: str) -> TableValuedAlias:
    """Return the rows of a table whose columns have the names and types of `slots`.

    Args:
        slots: names and types.
        name: of the table within the statement.
        prefix: begins the name of the parameter of each slot, which is a list.
    """
    arrays = [bindparam(f"{prefix}{slot}", type_=ARRAY(unbounded(type_))) for slot, type_ in slots]
    columns: list[Any] = [column(slot, type_) for slot, type_ in slots]
    return func.unnest(*arrays).table_valued(*columns).render_derived(name=name)
