"""What a replica does in these tests, step by step; each story says around which step the
failpoints are armed.

A story is played in a process that dies, freezes or loses its database there, and its rows are
finished by an heir. `Story.play` gets a `Scene`: the replica's sessions, and `armed()`, inside of
which boundaries count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Apply, Pipeline, PipelineItem, PipelineManager, Reset, Retry
from rowlock.testing import Failpoints, Steps, stepping

from ..host import Attachment, AttachmentPipeline, Base, Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.related_scenes import GatheringPipeline, SharingPipeline, write_all

__all__ = ["STORIES", "Base", "Scene", "Story"]

ROWS = 3
"""Where what is done for one row might spoil it for another; elsewhere one row says as much."""
SETTINGS: dict[str, Any] = {"workers_num": ROWS, "retry_delay": 1, "database_timeout": 5}
ALWAYS_RENEWED: dict[str, Any] = {"lock_timeout": 30, "heartbeat_trigger": 29.999}


@dataclass
class Scene:
    """A replica while it plays a story; `folder` is for what is to outlive it."""

    sessions: async_sessionmaker[AsyncSession]
    points: Failpoints
    folder: Path

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Count boundaries inside the block."""
        self.points.armed = True
        try:
            yield
        finally:
            self.points.armed = False

    def stepping(self, pipeline: Pipeline[Any]) -> AbstractAsyncContextManager[Steps[Any]]:
        """Give the steps of a pipeline of this replica."""
        return stepping(self.sessions, pipeline, beside=[AttachmentPipeline()])


@dataclass(frozen=True)
class Story:
    """One step of a pipeline's work, and who finishes it.

    Attributes:
        name: for the test's id.
        play: the step, with what leads to it and what follows.
        rows: what is put in before; volumes come with attachments.
        heir: builds the pipeline that finishes it.
        may_leave_leases: whether a connection that was lost may leave rows leased until that
            expires: those of a claim whose answer was lost, and those that could not be released.
    """

    name: str
    play: Callable[[Scene], Awaitable[None]]
    rows: Callable[[], Sequence[Any]] = lambda: [Volume()]
    heir: Callable[[], Pipeline[Any]] = lambda: VolumePipeline(**SETTINGS)
    may_leave_leases: bool = False


async def work_together(steps: Steps[Any]) -> None:
    """Work on all that is queued at once, so that outcomes are written in one transaction."""
    items = [steps.run.context.queue.get() for _ in steps.queued]
    await asyncio.gather(
        *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True) if item)
    )
    await steps.run.settler.wait_until_idle()


async def claim(scene: Scene) -> None:
    """Die while rows are being claimed."""
    async with scene.stepping(VolumePipeline(**SETTINGS)) as steps:
        with scene.armed():
            await steps.fetch_once()
        await steps.work_all()


async def load(scene: Scene) -> None:
    """Die while rows are being read."""

    def answer(item: PipelineItem[Any]) -> Apply:
        scene.points.armed = False
        return Apply({"status": "active"})

    async with scene.stepping(VolumePipeline(answer=answer, **SETTINGS)) as steps:
        await steps.fetch_once()
        with scene.armed():
            await steps.work_once()
        await steps.work_all()


async def renew(scene: Scene) -> None:
    """Die while leases are being renewed."""
    async with scene.stepping(VolumePipeline(**SETTINGS | ALWAYS_RENEWED)) as steps:
        await steps.fetch_once()
        await asyncio.sleep(0.002)  # one renewal is due a millisecond after the claim
        with scene.armed():
            await steps.beat_once()
        await steps.work_all()


async def renew_related(scene: Scene) -> None:
    """Die while the leases of related rows are being renewed with their item's."""
    beat: list[Callable[[], Awaitable[int]]] = []

    async def answer(item: PipelineItem[Any], rows: list[Attachment]) -> Apply:
        await asyncio.sleep(0.002)
        with scene.armed():
            await beat[0]()
        return write_all(item, rows)

    async with scene.stepping(GatheringPipeline(then=answer, **SETTINGS | ALWAYS_RENEWED)) as steps:
        beat.append(steps.beat_once)
        await steps.fetch_once()
        await steps.work_all()


def settle(
    answer: Any, pipeline: Callable[..., Any] = VolumePipeline
) -> Callable[[Scene], Awaitable[None]]:
    """Return a story in which the outcome of one row is being written."""

    async def play(scene: Scene) -> None:
        def process(item: PipelineItem[Any], rows: Sequence[Any] = ()) -> Any:
            scene.points.armed = True
            return answer(item, rows)

        told = {"then" if issubclass(pipeline, GatheringPipeline) else "answer": process}  # type: ignore[arg-type]
        async with scene.stepping(pipeline(**told, **SETTINGS)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            scene.points.armed = False
            await steps.run.settler.wait_until_idle()

    return play


async def apply_together(scene: Scene) -> None:
    """Die while the outcomes of several rows are being written in one transaction."""

    def process(item: PipelineItem[Any]) -> Apply:
        scene.points.armed = True
        return Apply({"status": "active"})

    async with scene.stepping(VolumePipeline(answer=process, **SETTINGS)) as steps:
        await steps.fetch_once()
        await work_together(steps)
        scene.points.armed = False


def lock_related(pipeline: type[GatheringPipeline]) -> Callable[[Scene], Awaitable[None]]:
    """Return a story in which related rows are being locked."""

    async def play(scene: Scene) -> None:
        def then(item: PipelineItem[Any], rows: list[Attachment]) -> Apply:
            scene.points.armed = False
            return write_all(item, rows)

        class Armed(pipeline):  # type: ignore[misc, valid-type]
            async def _gather(self, item: PipelineItem[Any]) -> Any:
                scene.points.armed = True
                return await super()._gather(item)

        Armed.__name__ = pipeline.__name__  # the name is the owner in the leases
        async with scene.stepping(Armed(then=then, **SETTINGS)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            scene.points.armed = False

    return play


async def give_back(scene: Scene) -> None:
    """Die while a shutdown releases what was not started."""
    async with scene.stepping(VolumePipeline(**SETTINGS)) as steps:
        await steps.fetch_once()
        with scene.armed():
            steps.run.shutdown()
            await steps.run.drain(0)


async def drain(scene: Scene) -> None:
    """Die while a shutdown interrupts what runs, and releases it."""
    all_run, running = asyncio.Event(), 0

    async def hang(item: PipelineItem[Any], rows: Sequence[Any]) -> None:
        nonlocal running
        running += 1
        if running == ROWS:
            all_run.set()
        await asyncio.Event().wait()

    manager = PipelineManager(scene.sessions, [GatheringPipeline(then=hang, **SETTINGS)])
    manager.start()
    await all_run.wait()
    with scene.armed():
        manager.shutdown()
        await manager.drain(0)


def _also_write(item: PipelineItem[Any], rows: Sequence[Any]) -> Apply:
    async def also(session: AsyncSession, now: object) -> None:
        volume = await session.get_one(Volume, item.id)
        volume.size_gb += 1

    return Apply({"status": "active"}, also=also)


def _fail(item: PipelineItem[Any], rows: Sequence[Any]) -> Any:
    raise LookupError("host code has failed")


def _gatherer() -> Pipeline[Any]:
    return GatheringPipeline(then=write_all, **SETTINGS)


def _sharer() -> Pipeline[Any]:
    return SharingPipeline(then=write_all, **SETTINGS)


def _runs() -> Sequence[Any]:
    return [Run()]


def _many() -> Sequence[Any]:
    return [Volume() for _ in range(ROWS)]


def _run_heir() -> Pipeline[Any]:
    return RunPipeline(**SETTINGS)


STORIES = {
    story.name: story
    for story in (
        Story("claim", claim, rows=_many, may_leave_leases=True),
        Story("load", load, rows=_many),
        Story("renew", renew, rows=_many),
        Story("renew-related", renew_related, heir=_gatherer),
        Story("apply", settle(lambda item, _: Apply({"status": "active"}))),
        Story("apply-alone", settle(_also_write)),
        Story("apply-together", apply_together, rows=_many),
        Story("apply-related", settle(write_all, GatheringPipeline), heir=_gatherer),
        Story("apply-shared", settle(write_all, SharingPipeline), heir=_sharer),
        Story(
            "retry",
            settle(lambda *_: Retry(error="later"), RunPipeline),
            rows=_runs,
            heir=_run_heir,
        ),
        Story("retry-related", settle(_fail, GatheringPipeline), heir=_gatherer),
        Story("reset", settle(lambda *_: Reset())),
        Story("lock-related", lock_related(GatheringPipeline), heir=_gatherer),
        Story("lock-shared", lock_related(SharingPipeline), heir=_sharer),
        Story("give-back", give_back, rows=_many, may_leave_leases=True),
        Story("drain", drain, rows=_many, heir=_gatherer, may_leave_leases=True),
    )
}
