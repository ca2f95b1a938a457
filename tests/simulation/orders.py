"""A small host for many runs: orders that are paid and then shipped by two pipelines on one table,
and customers who cancel.

What it is for: the bare protocol. Each attempt calls something outside, which is slow, fails, hangs
or ignores its cancellation, and every outcome that is written leaves its token in the row.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Park,
    Pipeline,
    PipelineItem,
    Reset,
    Retry,
    ScheduleColumns,
)

from ..simulator.scenario import Scenario, World

STEPS: Final = {"new": "paid", "paid": "shipped"}
ROWS_MAX: Final = 8


class Base(DeclarativeBase):
    """The mapped classes of this host."""


class Order(LockColumns, ScheduleColumns, Base):
    """Goes from new to paid to shipped, or is cancelled.

    Attributes:
        log: the token of each outcome that brought it a step further.
    """

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    log: Mapped[str] = mapped_column(default="")


class Outside:
    """What is called outside, and how often it was done for each order and step."""

    def __init__(self, world: World) -> None:
        self.done: Counter[tuple[int, str]] = Counter()
        self._world = world

    async def do(self, key: int, step: str) -> None:
        random = self._world.random
        calm = self._world.is_calm
        await asyncio.sleep(0.05 if calm else random.choice((0, 0.05, 0.4, 2, 5)))
        self.done[key, step] += 1
        if not calm and random.random() < 0.1:
            raise RuntimeError("nobody answers, though it was done")


class OrderPipeline(Pipeline[Order]):
    model = Order
    from_status = ""

    workers_num = 2
    min_processing_interval = 0.5
    lock_timeout = 6
    heartbeat_trigger = 3
    heartbeat_interval = 0.4
    renew_timeout = 1
    fetch_delays = (0.5, 2)
    database_timeout = 3
    process_timeout = 8
    cancel_grace = 1
    retry_delay = 0.5
    retry_delay_max = 2
    max_attempts = 50
    orphaned_after = 15

    def __init__(self, outside: Outside, world: World) -> None:
        super().__init__()
        self.outside = outside
        self.world = world

    def ready(self) -> ColumnElement[bool]:
        return Order.status == self.from_status

    def on_stale(self, item: PipelineItem[Order], outcome: Outcome) -> None:
        if isinstance(outcome, Apply) and outcome.values:
            self.outside.done[item.id, self.from_status] -= 1

    async def process(self, item: PipelineItem[Order]) -> Outcome:
        if item.row.status != self.from_status:
            return Apply()
        ending = (
            "apply" if self.world.is_calm else self.world.random.choice(("apply",) * 6 + ENDINGS)
        )
        if ending == "hang":
            await asyncio.Event().wait()
        if ending == "ignore":
            await ignoring_cancellation(self.world.random.choice((0.5, 3)))
        await self.outside.do(item.id, self.from_status)
        match ending:
            case "retry":
                return Retry(error="as drawn")
            case "reset":
                return Reset()
            case "park":
                return Park("as drawn")
        log = f"{item.row.log}{str(item.lock_token)[:8]} "
        return Apply({"status": STEPS[self.from_status], "log": log}, unless_changed=[Order.status])


ENDINGS: Final = ("retry", "reset", "park", "hang", "ignore")


class PayPipeline(OrderPipeline):
    from_status = "new"


class ShipPipeline(OrderPipeline):
    from_status = "paid"


class Orders(Scenario):
    """A few orders, two pipelines, and a customer who cancels."""

    watched = MappingProxyType({Order: ("status",)})

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.outside = Outside(world)
        self.cancelled: set[int] = set()
        self._rows_num = world.random.randint(1, ROWS_MAX)

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        return [PayPipeline(self.outside, self.world), ShipPipeline(self.outside, self.world)]

    def rows(self) -> Iterable[object]:
        return [Order(id=number) for number in range(1, self._rows_num + 1)]

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.cancel] * self.world.random.randint(0, 1)

    async def cancel(self) -> None:
        random = self.world.random
        await asyncio.sleep(random.choice((0.05, 0.5, 3)))
        key = random.randint(1, self._rows_num)
        async with self.world.session_factory.begin() as session:
            order = await session.scalar(select(Order).where(Order.id == key).with_for_update())
            if order is None or order.status == "shipped":
                return
            order.status = "cancelled"
        self.cancelled.add(key)

    def check(self) -> None:
        """What the row says was done outside, each step once in its log, and what was cancelled
        stays so.
        """
        for order in self.world.read(Order):
            tokens = order.log.split()
            assert len(tokens) == len(set(tokens)), f"order {order.id} has a token twice: {tokens}"
            if order.status == "shipped":
                assert len(tokens) == len(STEPS), f"order {order.id} took {len(tokens)} steps"
            for step in list(STEPS)[: len(tokens)]:
                assert self.outside.done[order.id, step] > 0, (
                    f"order {order.id} says that {step!r} was done"
                )
            assert order.id not in self.cancelled or order.status == "cancelled", (
                f"order {order.id} was cancelled"
            )


async def ignoring_cancellation(seconds: float) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
