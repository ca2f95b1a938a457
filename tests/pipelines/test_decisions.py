"""Tests of decisions: an object that the host returned may raise anything, and then its own row
has failed and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from rowlock import Apply, RelatedLockUnavailable, Retry
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .hostile import HostExit, RaisingList, RaisingMapping
from .scenes import TidyPipeline, add, counted, is_free, read, until

ERRORS = [
    KeyError("worker"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    HostExit(),
]


class RaisingClass:
    """Raises when it is asked what it is, as a proxy may."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def __class__(self) -> NoReturn:  # type: ignore[override]
        """Raise."""
        raise self._error


class RaisingGroup(BaseExceptionGroup):  # type: ignore[type-arg]
    """Raises when it is asked what is in it."""

    def split(self, _condition: Any) -> NoReturn:  # type: ignore[override]
        """Raise the first of its errors."""
        raise self.exceptions[0]


class RaisingText(str):
    """Cannot be shown."""

    __slots__ = ("error",)

    def __hash__(self) -> int:
        """Raise."""
        raise self.error  # type: ignore[attr-defined]

    __eq__ = str.__eq__


def _raising_key(error: BaseException) -> RaisingText:
    key = RaisingText("status")
    key.error = error  # type: ignore[attr-defined]
    return key


def _raise(error: BaseException) -> NoReturn:
    raise error


OUTCOMES: dict[str, Callable[[BaseException], Any]] = {
    "values": lambda error: Apply(RaisingMapping(error)),
    "values of a failure": lambda error: Retry(values=RaisingMapping(error)),
    "related rows": lambda error: Apply(related=RaisingMapping(error)),
    "unless_changed": lambda error: Apply(unless_changed=RaisingList(error)),
    "a column's name": lambda error: Apply(unless_changed=[_raising_key(error)]),
    "hints": lambda error: Apply(hint=RaisingList(error)),
    "an object": RaisingClass,
    "a group of errors": lambda error: _raise(RaisingGroup("several", [error])),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("what", OUTCOMES)
def test_what_an_outcome_raises_is_the_rows_failure(
    virtual_database: TemporaryDatabase, what: str, error: BaseException
) -> None:
    """A ``SystemExit`` out of a property of the host's would end a worker, or the whole event
    loop; and the row stay leased.
    """

    @virtual_time
    async def play() -> None:
        rows = await add(virtual_database, Run(id=1), Run(id=2))

        def answer(item: Any) -> Any:
            return OUTCOMES[what](error) if item.id == 1 else Apply({"status": "done"})

        async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
            await steps.fetch_once()
            assert await steps.work_all() == 2
            assert (counted(steps)["retried"], counted(steps)["applied"]) == (1, 1)
            assert steps.run.statistics().tracked == 0
        bad, good = [await read(virtual_database, row) for row in rows]
        assert is_free(bad)
        assert (bad.status, bad.attempts, good.status) == ("queued", 1, "done")
        assert bad.last_error

    play()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_late_outcome_raises_ends_nothing(
    virtual_database: TemporaryDatabase, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop would end because of a result that nobody waits for any more."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Volume())
        let_go = asyncio.Event()

        async def answer(item: Any) -> Any:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return Apply(RaisingMapping(error))

        pipeline = TidyPipeline(answer=answer, process_timeout=10, cancel_grace=5)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["abandoned"] == 1
            let_go.set()
            await until(lambda: steps.run.health().abandoned == 0)
            await asyncio.sleep(1)
            assert pipeline.stale == []

    play()
    assert any("processing row" in record.getMessage() for record in caplog.records)


@virtual_time
async def test_a_refused_lock_within_a_group_is_no_failure(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that waits for others would count attempts, and be parked in the end."""
    await add(virtual_database, Volume())
    error = ExceptionGroup("tasks", [RelatedLockUnavailable(model="Disk", wanted=2, available=1)])
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=error)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["reset"] == 1
