"""How many questions are asked at once.

The one idea: each needs a connection of the host's pool, from which outcomes get theirs, too. So
however many look, and however slowly the database answers, most of the pool is left to the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

from rowlock.errors import TransactionTimeout

QUESTIONS_AT_ONCE_MAX: Final = 4
"""Most questions of one `Insight` to one database that are asked at once; the others wait."""


class QuestionPlaces:
    """Places for questions, in each event loop that asks, and for each engine: one whose database
    hangs keeps no other waiting.
    """

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakKeyDictionary[Engine, asyncio.Semaphore]
        ] = WeakKeyDictionary()

    @asynccontextmanager
    async def taken(self, engine: Engine, *, within: timedelta) -> AsyncIterator[None]:
        """Have a place in the block, of those for questions to one engine.

        Raises:
            TransactionTimeout: there was none `within` that time.
        """
        by_engine = self._by_loop.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
        places = by_engine.setdefault(engine, asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX))
        within_s = within.total_seconds()
        try:
            async with asyncio.timeout(within_s):
                await places.acquire()
        except TimeoutError as error:
            raise TransactionTimeout(purpose="answer a question", timeout_s=within_s) from error
        try:
            yield
        finally:
            places.release()
