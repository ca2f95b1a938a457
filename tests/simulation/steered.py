"""Orders whose pipelines are paused, and whose rows are released, parked and put back, at random
moments, while everything else goes wrong as well.

What it is for: after a pause was committed no claim begins, anywhere. The file has one writer, so
a claim that is committed behind a pause has begun behind it; what was claimed is what the historian
noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import select, text

from rowlock.errors import Refusal
from rowlock.insight import Insight, insight_tables

from ..simulator.scenario import World
from .orders import Base, Order, Orders

TABLES: Final = insight_tables(Base.metadata, replicas=False)
STEPS_MAX: Final = 6
"""Most acts of one person."""
PIPELINES: Final = ("PayPipeline", "ShipPipeline")
SAID: Final[Any] = {"by": "alice", "reason": "as drawn"}


class Seen(NamedTuple):
    owner: str | None
    token: Any


class Steered(Orders):
    gates = (TABLES.pause_gate,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._paused: dict[str, str | None] = {}
        self._noted = 0

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [*super().services(), *[self.steer] * self.world.random.randint(1, 2)]

    async def steer(self) -> None:
        random = self.world.random
        actions = Insight(self.world.session_factory, self.pipelines(), tables=TABLES)
        for _ in range(random.randint(1, STEPS_MAX)):
            await asyncio.sleep(random.choice((0, 0.05, 0.4, 2)))
            if self.world.is_calm:
                return
            act = random.choice((self._pause, self._pause, self._resume, self._release, self._park))
            try:
                await act(actions)
            except Refusal as refused:
                self.world.note(f"is refused: {type(refused).__name__}")

    async def _pause(self, actions: Insight) -> None:
        # Each ends by itself: who has paused may be killed.
        lasts = timedelta(seconds=self.world.random.choice((0.5, 2, 6)))
        pipeline = self.world.random.choice(PIPELINES)
        await actions.pause(pipeline, until=lasts, replace=True, **SAID)

    async def _resume(self, actions: Insight) -> None:
        await actions.resume(self.world.random.choice(PIPELINES), **SAID)

    async def _release(self, actions: Insight) -> None:
        key = self._any_key()
        async with self.world.session_factory() as session:
            found = await session.execute(
                select(Order.lock_owner, Order.lock_token).where(Order.id == key)
            )
            row = found.one_or_none()
        if row is not None:
            await asyncio.sleep(self.world.random.choice((0, 0.2, 3)))
            await actions.release(Order, key, seen=Seen(*row), **SAID)

    async def _park(self, actions: Insight) -> None:
        key = self._any_key()
        await actions.park(Order, key, **SAID)
        await asyncio.sleep(self.world.random.choice((0, 0.5, 3)))
        await actions.unpark(Order, key, **SAID)

    def _any_key(self) -> int:
        return self.world.random.randint(1, self._rows_num)

    def always(self) -> None:
        """No pipeline has claimed what it was paused for before the claim was committed."""
        with self.world.reading() as connection:
            claims = connection.execute(
                text(
                    "SELECT number, instant, json_extract(became, '$.lock_owner') FROM"
                    " rowlock_history WHERE number > :noted AND became IS NOT NULL AND"
                    " json_extract(became, '$.lock_token') IS NOT NULL AND"
                    " json_extract(became, '$.lock_token') IS NOT"
                    " json_extract(was, '$.lock_token') ORDER BY number"
                ),
                {"noted": self._noted},
            ).all()
            last = connection.scalar(text("SELECT max(number) FROM rowlock_history"))
            paused = {
                row[0]: row[1]
                for row in connection.execute(
                    text("SELECT pipeline, until FROM rowlock_controls")
                ).all()
            }
        before, self._paused, self._noted = self._paused, paused, last or 0
        for number, instant, owner in claims:
            until = before.get(owner, "")
            assert until == "" or (until is not None and until <= instant), (
                f"change {number}: {owner} claims a row at {instant}, and is paused until {until}"
            )
