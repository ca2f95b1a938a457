"""How many versions of its rows a table has been through, as PostgreSQL counts them; SQLite has
none.

A server process tells its counters when it ends, so they are read when the connections of what is
measured are closed.
"""

from __future__ import annotations

import asyncio

from host import Host
from measure import Figures, Place
from sqlalchemy import text

LOOKS_MAX = 40
LOOK_S = 0.05

_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND state <> 'idle in transaction'
"""
_VERSIONS = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = :table"


async def row_versions(place: Place, table: str, *, rows: int) -> Figures:
    """Return new versions per row of a table that was made for `rows`, and the share of them
    that no index has to know.
    """
    async with Host.opened(place.url, empty=False) as host:
        if not host.is_postgresql:
            return {}
        await _until_alone(host)
        async with host.engine.connect() as connection:
            updated, heap_only = (await connection.execute(text(_VERSIONS), {"table": table})).one()
    return {"row versions/row": updated / rows, "HOT %": 100 * heap_only / max(1, updated)}


async def _until_alone(host: Host) -> None:
    for _ in range(LOOKS_MAX):
        async with host.engine.connect() as connection:
            if not (await connection.execute(text(_OTHERS))).scalar_one():
                return
        await asyncio.sleep(LOOK_S)
