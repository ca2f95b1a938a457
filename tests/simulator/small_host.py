"""The smallest host there is, for tests of the simulator; ``python -m
tests.simulator.small_host SEED ...`` prints what its runs leave behind.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem

from .scenario import Scenario, World
from .simulation import Simulation


class Base(DeclarativeBase):
    """The mapped classes."""


class Task(LockColumns, Base):
    __tablename__ = "tasks"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="todo")


class TaskPipeline(Pipeline[Task]):
    model = Task
    min_processing_interval = 0.5
    lock_timeout = 6
    heartbeat_trigger = 3

    def __init__(self, world: World, done: list[Any]) -> None:
        super().__init__()
        self.world = world
        self.done = done

    def ready(self) -> ColumnElement[bool]:
        return Task.status == "todo"

    async def process(self, item: PipelineItem[Task]) -> Outcome:
        await asyncio.sleep(self.world.random.choice((0, 0.1, 2)))
        self.done.append(item.id)
        return Apply({"status": "done"})


class Tasks(Scenario):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.done: list[Any] = []

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        return [TaskPipeline(self.world, self.done)]

    def rows(self) -> Iterable[object]:
        return [Task() for _ in range(self.world.random.randint(1, 6))]

    def check(self) -> None:
        assert {task.id for task in self.world.read(Task)} == set(self.done)


if __name__ == "__main__":
    with Simulation(Tasks) as simulation:
        for report in simulation.run_all(map(int, sys.argv[1:])):
            print(report.fingerprint)
            print("\n".join(map(str, report.entries)))
