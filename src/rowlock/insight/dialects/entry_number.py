"""What counts the entries of the history up on each database."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Integer

ENTRY_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of their numbers; SQLite counts up only in a column that it calls INTEGER."""
