"""What services do meanwhile: hold rows, ask for something, release or delete rows; some of them
die with rows in hand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import LeaseLost, LockWaitTimeout, hold_rows, request_update

from .book import Book, Place
from .tables import MODELS

Sessions: TypeAlias = async_sessionmaker[AsyncSession]


class Services:
    """The host's services.

    Attributes:
        held: how often each row was written under a hold.
        held_perhaps: how often besides, by a COMMIT whose end is unknown.
        asked: what was asked last of each row.
        asked_perhaps: what may have been asked since, by a COMMIT whose end is unknown.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.held: Counter[Place] = Counter()
        self.held_perhaps: Counter[Place] = Counter()
        self.asked: dict[Place, int] = {}
        self.asked_perhaps: dict[Place, set[int]] = {}

    async def hold(
        self,
        sessions: Sessions,
        places: Sequence[Place],
        is_alive: Callable[[], bool],
        *,
        wait_s: float,
        hold_s: float,
    ) -> None:
        table, keys = places[0][0], [key for _, key in places]
        model, who = MODELS[table], f"a service that holds {table} {keys}"
        try:
            async with hold_rows(sessions, model, keys, timeout=wait_s, lock_timeout=3) as held:
                self.book.note(f"{who} has them")
                own = [(table, row.id) for row in held.rows]
                with self.book.at_work(
                    who, own, lambda: held.remaining.total_seconds() > 0 and is_alive()
                ):
                    await asyncio.sleep(hold_s)
                    async with sessions.begin() as session:
                        await held.guard(session)
                        for row in held.rows:
                            await session.execute(
                                update(model).where(model.id == row.id).values(held=row.held + 1)
                            )
                        self.held_perhaps.update(own)
                self.held_perhaps.subtract(own)
                self.held.update(own)
                self.book.note(f"{who} lets them go")
        except (LockWaitTimeout, LeaseLost, OSError) as error:
            self.book.note(f"{who} gives up: {error}")

    async def ask(self, sessions: Sessions, place: Place, wanted: int) -> None:
        table, key = place
        async with sessions.begin() as session:
            found = await request_update(session, MODELS[table], key, {"wanted": wanted})
            self.asked_perhaps.setdefault(place, set()).add(wanted)
        if found:
            self.asked[place] = wanted
            self.asked_perhaps[place] = set()
        self.book.note(f"a service asked {table} {key} for {wanted}: {found}")

    async def remove(self, sessions: Sessions, place: Place) -> None:
        table, key = place
        async with sessions.begin() as session:
            await session.execute(delete(MODELS[table]).where(MODELS[table].id == key))
        self.book.note(f"{table} {key} was deleted")
