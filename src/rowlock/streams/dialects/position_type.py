"""What a table says on each database so that it assigns positions."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Integer, Table

POSITION: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of positions; SQLite counts up only in a column that it calls INTEGER."""
KEEPS_COUNTING: Final[dict[str, Any]] = {"sqlite_autoincrement": True}
"""Options of a table: without them SQLite assigns the highest position again once its row was
deleted.
"""


def keep_counting(table: Table) -> None:
    """Give a table that is there already what `KEEPS_COUNTING` asks for."""
    table.dialect_options["sqlite"]["autoincrement"] = True
