"""A name to lock, and the question whether it is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowlock import try_advisory_lock_ctx

if TYPE_CHECKING:
    from rowlock.testing import TemporaryDatabase

NAME = "fleet_names_main"


async def is_free(database: TemporaryDatabase, name: str = NAME) -> bool:
    async with database.session_factory() as session, try_advisory_lock_ctx(session, name) as held:
        return held
