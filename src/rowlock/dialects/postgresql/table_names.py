"""A table's name as the statements of a connection have it, quoted where that is needed."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection


def name_in_database(connection: AsyncConnection, table: Any) -> str:
    """Return the name of `table` in the schema where the connection's statements look for it."""
    sync, quote = connection.sync_connection, connection.dialect.identifier_preparer.quote
    assert sync is not None
    translated = sync.get_execution_options().get("schema_translate_map") or {}
    schema = translated.get(table.schema, table.schema)
    return quote(table.name) if schema is None else f"{quote(schema)}.{quote(table.name)}"
