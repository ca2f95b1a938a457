"""The host of the tests: its tables, pipelines that note down what they were given, and an ear for
events.

Imported as ``from ..host import Volume, VolumePipeline`` from a test one folder down.

    pipeline = VolumePipeline(answer=Retry(error="no disk"), workers_num=2)   # an outcome, an
    exception, or a function with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied, count=3)
    assert [item.id for item in pipeline.items] == [...]
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import JSON, ColumnElement, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    Event,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    ScheduleColumns,
    UtcDateTime,
    database_now,
    subscribe,
)
from rowlock.testing import VirtualTimeLoop

from .well_told import wrong_with

HANG_S_MAX: Final = 300.0
"""How long a test waits for what comes at once, unless it never does. Only a hang may last as long,
on a starved machine too; where a time is promised, tests move a clock. **Unit** seconds."""
VIRTUAL_WAIT_S_MAX: Final = 30.0
"""The same where time is virtual: no machine is slow there. **Unit** seconds."""

EventT = TypeVar("EventT", bound=Event)
Answer: TypeAlias = Outcome | BaseException | Callable[[PipelineItem[Any]], Any] | None
"""What `process` does: return it, raise it, or call it with the item (and await what that
gives).
"""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, Base):
    """A resource with the four lock columns and nothing else of ours."""

    __tablename__ = "volumes"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="submitted")
    size_gb: Mapped[int] = mapped_column(default=1)
    disk_id: Mapped[str | None]
    active_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attachments: Mapped[list[Attachment]] = relationship(
        back_populates="volume", order_by="Attachment.name"
    )


class Attachment(LockColumns, Base):
    """A child of a volume; it can be leased too, by its own pipeline or together with its
    volume.
    """

    __tablename__ = "attachments"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    volume_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("volumes.id"))
    name: Mapped[str] = mapped_column(default="data")
    status: Mapped[str] = mapped_column(default="submitted")
    volume: Mapped[Volume] = relationship(back_populates="attachments")


class Run(LockColumns, ScheduleColumns, Base):
    """A resource with a schedule, a number for its key, and a column that stamps itself on every
    update.
    """

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    result: Mapped[Any | None] = mapped_column(JSON(none_as_null=True), default=None, nullable=True)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=database_now(), onupdate=database_now()
    )


class RecordingPipeline(Pipeline[Any]):
    """Notes every item and every stale result, and answers as it was told.

    Attributes:
        items: what `process` was given, in order.
        stale: items and outcomes that could not be applied.
        running: how many are inside `process` now.
    """

    def __init__(self, *, answer: Answer = None, **settings: Any) -> None:
        """Take the answer of `process`, and settings as any pipeline."""
        super().__init__(**settings)
        self.answer: Answer = self.usual_answer if answer is None else answer
        self.items: list[PipelineItem[Any]] = []
        self.stale: list[tuple[PipelineItem[Any], Outcome]] = []
        self.running = 0

    def usual_answer(self, item: PipelineItem[Any]) -> Outcome:
        """Say what `process` does unless the test has an answer of its own."""
        return Apply()

    async def process(self, item: PipelineItem[Any]) -> Any | None:
        """Note the item, then answer."""
        self.items.append(item)
        self.running += 1
        try:
            answer = self.answer(item) if callable(self.answer) else self.answer
            answer = await answer if inspect.isawaitable(answer) else answer
        finally:
            self.running -= 1
        if isinstance(answer, BaseException) and not isinstance(answer, Outcome):
            raise answer
        return answer

    def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:
        """Note what could not be applied."""
        self.stale.append((item, outcome))


class VolumePipeline(RecordingPipeline):
    """Makes submitted volumes active."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    def usual_answer(self, item: PipelineItem[Any]) -> Outcome:
        """Write three columns, one of them the transaction's time."""
        return Apply(
            {"status": "active", "disk_id": f"disk-{item.id}", "active_at": NOW_PLACEHOLDER}
        )


class AttachmentPipeline(RecordingPipeline):
    """Makes submitted attachments active."""

    model = Attachment

    def ready(self) -> ColumnElement[bool]:
        """Submitted attachments want work."""
        return Attachment.status == "submitted"

    def usual_answer(self, item: PipelineItem[Any]) -> Outcome:
        """Write one column."""
        return Apply({"status": "active"})


class RunPipeline(RecordingPipeline):
    """Ends queued runs."""

    model = Run

    def ready(self) -> ColumnElement[bool]:
        """Queued runs want work."""
        return Run.status == "queued"

    def usual_answer(self, item: PipelineItem[Any]) -> Outcome:
        """Write one column."""
        return Apply({"status": "done"})


def wait_s_max() -> float:
    """Return how long to wait, on the running loop, for what comes at once."""
    is_virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    return VIRTUAL_WAIT_S_MAX if is_virtual else HANG_S_MAX


class HeardEvents:
    """What was emitted, in order, and waiting for more of it."""

    def __init__(self) -> None:
        """Have heard nothing yet."""
        self.all: list[Event] = []
        self.wrong: list[str] = []
        self._more = asyncio.Event()

    def listen(self, event: Event) -> None:
        """Note one event; the listener that `heard_events` subscribes."""
        self.all.append(event)
        if (wrong := wrong_with(event)) is not None:
            self.wrong.append(wrong)
        self._more.set()

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one kind."""
        return [event for event in self.all if isinstance(event, kind)]

    async def wait_for(self, kind: type[EventT], *, count: int = 1) -> list[EventT]:
        """Wait until `count` events of the kind were emitted; return all of the kind."""
        async with asyncio.timeout(wait_s_max()):
            while len(self.of(kind)) < count:
                self._more.clear()
                await self._more.wait()
        return self.of(kind)


@contextmanager
def heard_events() -> Iterator[HeardEvents]:
    """Hear every event of the process until the block ends."""
    heard = HeardEvents()
    unsubscribe = subscribe(heard.listen)
    try:
        yield heard
    finally:
        unsubscribe()
    assert not heard.wrong
