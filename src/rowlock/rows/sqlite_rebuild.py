"""What a table of SQLite would lose if a migration rebuilt it.

SQLite cannot change much of a table in place, so Alembic copies it: new table, all rows, drop the old one, rename. What SQLAlchemy
does not read back from the old table is not in the new one, and nobody is told. Here it is found before anything is done.

Not here: the rebuild (Alembic's batch mode, called by ``migrations.py``).

Source: Alembic, "Running batch migrations"; SQLite, "ALTER TABLE" and "Foreign key support".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rowlock.errors import ConfigurationError

_NAME = r'(?:"[^"]+"|\w+)'
_NOT_READ_BACK = re.compile(
    r"\b(?:(?:COLLATE|AUTOINCREMENT|ON\s+CONFLICT|STRICT|GENERATED)\b|AS\s*(?=\())", re.IGNORECASE
)
_CHECK = re.compile(r"\bCHECK\s*\(", re.IGNORECASE)
_NAMED_CHECK = re.compile(rf"\bCONSTRAINT\s+{_NAME}\s+CHECK\s*\(", re.IGNORECASE)
_REFERENCE = rf"\bREFERENCES\s+{_NAME}\s*(?:\([^)]*\)\s*)?(?:ON\s|NOT\s+DEFERRABLE|DEFERRABLE)"
_ACTING_REFERENCE = re.compile(_REFERENCE, re.IGNORECASE)
_ACTING_REFERENCE_OF_TABLE = re.compile(rf"\bFOREIGN\s+KEY\s*\([^)]*\)\s*{_REFERENCE}", re.IGNORECASE)
_STRING_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)


class SchemaEntry(NamedTuple):
    """A row of ``sqlite_master``: one table, index, trigger or view, the table it belongs to, and its SQL."""

    kind: str
    name: str
    table_name: str
    sql: str


def refuse_lossy_rebuild(
    bind: Any,  # noqa: ANN401 - Alembic's
    table_name: str,
    *,
    added: Iterable[str],
    schema: str | None = None,
) -> None:
    """Check, by reading in the migration's transaction, that a rebuild with the columns `added` keeps everything.

    Raises:
        ConfigurationError: it would not; the error says what, and what to do.
    """
    schema = schema or "main"
    quoted = bind.dialect.identifier_preparer.quote_identifier(schema)
    sql = f"SELECT type, name, tbl_name, sql FROM {quoted}.sqlite_master WHERE sql IS NOT NULL"  # noqa: S608 - quoted
    lost = list(lost_by_rebuild(table_name, [SchemaEntry(*entry) for entry in bind.exec_driver_sql(sql)]))
    # A batch that adds a column of a name that is there replaces it, with whatever was in it.
    columns = bind.exec_driver_sql("SELECT name FROM pragma_table_info(?, ?)", (table_name, schema)).scalars()
    there = {name.lower() for name in columns}
    lost += [f"its own column {name}" for name in added if name in there]
    # Dropping the old table deletes its rows first, and the rows that refer to them go along (ON DELETE CASCADE).
    if bind.exec_driver_sql("PRAGMA foreign_keys").scalar():
        lost.append("rows that refer to it: run PRAGMA foreign_keys=OFF before the migration's transaction")
    if lost:
        raise ConfigurationError(
            f"on SQLite, {table_name} must be rebuilt for the default of due_at, and would lose {'; '.join(lost)}. Take away what "
            "can be put back afterwards, or write a batch of your own (op.batch_alter_table with copy_from or table_args) that "
            "adds rowlock.rows.migrations.schedule_columns()"
        )


def lost_by_rebuild(table_name: str, entries: Iterable[SchemaEntry]) -> Iterator[str]:
    """Yield what of `entries` a rebuild of the table would lose or break."""
    name = table_name.lower()
    mentioned = re.compile(rf"\b{re.escape(name)}\b")
    for entry in entries:
        sql = _STRING_OR_COMMENT.sub("''", entry.sql)
        belongs = entry.table_name.lower() == name
        if entry.kind == "table" and belongs:
            yield from _lost_of_table(sql)
        elif entry.kind == "index" and belongs and _has_expression(sql):
            yield f"the index {entry.name}"
        elif entry.kind in ("trigger", "view") and (belongs or mentioned.search(sql.lower())):
            yield f"the {entry.kind} {entry.name}"


def _lost_of_table(sql: str) -> Iterator[str]:
    yield from sorted({found[0].strip().upper() for found in _NOT_READ_BACK.finditer(sql)})
    if len(_CHECK.findall(sql)) > len(_NAMED_CHECK.findall(sql)):
        yield "a CHECK without a name"
    # Of a reference that stands at its column the table is read back, and not what happens to the row.
    if len(_ACTING_REFERENCE.findall(sql)) > len(_ACTING_REFERENCE_OF_TABLE.findall(sql)):
        yield "the ON DELETE, ON UPDATE or DEFERRABLE of a column's REFERENCES"


def _has_expression(sql: str) -> bool:
    columns = re.split(r"\bWHERE\b", sql, maxsplit=1, flags=re.IGNORECASE)[0].partition("(")[2]
    return "(" in columns or re.search(r"\bCOLLATE\b", columns, re.IGNORECASE) is not None
