"""What rowlock does differently on each database: one `Dialect` for each, in a folder of its own.
Nothing outside of this folder decides by the name of a database or of a driver.
"""

from __future__ import annotations

from rowlock.dialects.postgresql import POSTGRESQL
from rowlock.dialects.registry import (
    Dialect,
    DialectPart,
    dialect_named,
    driver_packages,
    known_dialects,
    register,
)
from rowlock.dialects.sqlite import SQLITE

__all__ = [
    "Dialect",
    "DialectPart",
    "dialect_named",
    "driver_packages",
    "known_dialects",
    "register",
]

register(POSTGRESQL)
register(SQLITE)
