"""Events whose parts run code of the host when they are looked at: whatever that raises fails
the row, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import FAILED, AttemptEvent, Completed, StageDone, Task
from rowlock.dispatch.columns import error_of, progress_of
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, pipeline_of, settled, submit

pytestmark = pytest.mark.either_database


class HostileMapping(Mapping[str, Any]):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, key: str) -> Any:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        return 1


ERRORS = (asyncio.CancelledError(), ValueError())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual_time
async def test_whatever_a_part_of_an_event_raises_fails_its_row_once(
    virtual_database: TemporaryDatabase, error: BaseException
) -> None:
    """One handler would end the event loop of its replica, or be begun again and again until its
    deadline.
    """
    scenes, fleet = Scenes(), Fleet(1)

    async def yields(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed(HostileMapping(error))

    scenes.answers["a"] = yields
    async with PipelineManager(virtual_database.session_factory, [pipeline_of(fleet, scenes)]):
        await submit(virtual_database, pipeline_of(fleet), "a")
        [row] = await settled(virtual_database)
    assert (row.status, fleet.begun["a"], row.losses) == (FAILED, 1, 0)


async def test_what_a_handler_changes_afterwards_is_written_nowhere(
    database: TemporaryDatabase,
) -> None:
    """A handler that reuses one dict would change what earlier stages recorded, and the next
    attempt would begin from that.
    """
    scenes = Scenes()

    async def reuses(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        files: list[str] = []
        where = {"files": files}
        for name in ("raw", "lit"):
            files.append(name)
            yield StageDone(name, where)
        yield Completed()

    scenes.answers["a"] = reuses
    renders = pipeline_of(Fleet(1), scenes)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    assert row.stages == {"raw": {"files": ["raw"]}, "lit": {"files": ["raw", "lit"]}}


def test_of_a_long_text_no_more_is_read_than_is_shown() -> None:
    """A handler that gives a file of megabytes for a text would keep the event loop for a second
    with each.
    """

    class Text(str):
        read = 0

        def __getitem__(self, key: Any) -> str:
            Text.read = max(Text.read, key.stop)
            return super().__getitem__(key)

        def __str__(self) -> str:
            return self

    for shown in (progress_of(Text("x/" * 5_000_000)), error_of("input", Text("x/" * 5_000_000))):
        assert len(shown) <= 1_024
    assert 0 < Text.read <= 20_000
