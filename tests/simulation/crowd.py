"""A host of many rows at once: what one transaction cannot write in its time if the database is far
away.

What it is for: outcomes that need a statement each (their expression is like no other) come by the
dozen, from as many workers as there are rows. A database next door writes all of them together in
no time; one that is 25 ms away does not, in the time that a transaction has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    ScheduleColumns,
    hint_after_commit,
)

from ..simulator.faults.fault_kinds import Fault
from ..simulator.scenario import Scenario, World

ROWS: Final = (150, 200)
"""Fewest and most rows of a run."""
SETTLED_WITHIN: Final = timedelta(seconds=20)
"""Four times what a statement for each row takes, each of them 25 ms."""
IN_VAIN: Final = 0.1
"""The share of results that may be lost, and computed again."""


class Base(DeclarativeBase):
    """The mapped classes of this host."""


class Message(LockColumns, ScheduleColumns, Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class MessagePipeline(Pipeline[Message]):
    model = Message

    workers_num = ROWS[1]
    queue_lower_limit_factor = 0
    queue_upper_limit_factor = 0
    min_processing_interval = 0.5
    lock_timeout = 8
    heartbeat_trigger = 4
    heartbeat_interval = 0.5
    renew_timeout = 1.5
    fetch_delays = (0.5, 1)
    database_timeout = 1.5
    retry_delay = 0.5
    retry_delay_max = 2
    max_attempts = 50
    orphaned_after = 20

    def __init__(self, sent: Counter[int]) -> None:
        super().__init__()
        self._sent = sent

    def ready(self) -> ColumnElement[bool]:
        return Message.status == "new"

    async def process(self, item: PipelineItem[Message]) -> Outcome:
        await asyncio.sleep(0.2)
        self._sent[item.id] += 1
        # It asks for its value when it is sent, so that no two share a statement.
        return Apply({"status": bindparam(None, callable_=lambda: "sent")})


class Crowd(Scenario):
    """Many messages, one replica, and nothing wrong but what lasts for all of the run."""

    replicas_num = 1
    faults = (Fault.LATENCY, Fault.LOGGING, Fault.LISTENERS, Fault.WAKES)
    settle_within = SETTLED_WITHIN

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: Counter[int] = Counter()
        self._rows_num = world.random.randint(*ROWS)

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        return [MessagePipeline(self.sent)]

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.write]

    async def write(self) -> None:
        async with self.world.session_factory.begin() as session:
            await session.execute(
                insert(Message), [{"id": number} for number in range(1, self._rows_num + 1)]
            )
            hint_after_commit(session, Message)

    def check(self) -> None:
        assert all(message.status == "sent" for message in self.world.read(Message))
        again = sum(self.sent.values()) - self._rows_num
        assert again <= IN_VAIN * self._rows_num, (
            f"{again} results of {self._rows_num} rows were computed in vain"
        )
