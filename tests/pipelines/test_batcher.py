"""Batches: gathered while busy, at once when idle, and one bad request alone in its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rowlock.pipelines import batcher as batcher_module
from rowlock.pipelines.batcher import Batcher

from .scenes import turns


class Backend:
    """Answers with the request doubled; notes its batches; waits at a gate."""

    def __init__(self) -> None:
        """Start with the gate open."""
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.refused = -1

    async def run(self, requests: Sequence[int]) -> list[int]:
        """Answer one batch."""
        self.batches.append(list(requests))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.refused in requests:
            raise ValueError(f"{self.refused} is refused")
        return [2 * request for request in requests]


async def test_a_lone_request_starts_at_once() -> None:
    """When it is quiet, an outcome would wait for company."""
    backend = Backend()
    assert await Batcher(backend.run, name="test").submit(1) == 2
    assert backend.batches == [[1]]


async def test_what_comes_while_busy_shares_the_next_batch() -> None:
    """Under load, each request would cost a round trip of its own."""
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test")
    first = asyncio.create_task(batcher.submit(1))
    await turns(2)
    others = [asyncio.create_task(batcher.submit(number)) for number in range(2, 6)]
    await turns(2)
    backend.gate.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8, 10]
    assert backend.batches == [[1], [2, 3, 4, 5]]


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement would grow with the number of workers."""
    monkeypatch.setattr(batcher_module, "BATCH_MAX", 3)
    backend = Backend()
    batcher = Batcher(backend.run, name="test")
    await asyncio.gather(*(batcher.submit(number) for number in range(7)))
    assert [len(batch) for batch in backend.batches] == [3, 3, 1]


async def test_one_bad_request_fails_alone() -> None:
    """Everybody in its batch would get its error."""
    backend = Backend()
    backend.refused = 2
    batcher = Batcher(backend.run, name="test")
    results = await asyncio.gather(*(batcher.submit(number) for number in (1, 2, 3)), return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], ValueError)


async def test_an_outage_is_not_tried_once_for_each_request() -> None:
    """A database that is away would be asked, and waited for, once for each row in hand."""
    backend = Backend()
    backend.error = ConnectionRefusedError()
    batcher = Batcher(backend.run, name="test")
    results = await asyncio.gather(*(batcher.submit(number) for number in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionRefusedError] * 5
    assert len(backend.batches) == 1


async def test_a_caller_that_is_cancelled_takes_nobody_with_it() -> None:
    """The cancellation of one item would break off the transaction of others."""
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test")
    leaver, stayer = (asyncio.create_task(batcher.submit(number)) for number in (1, 2))
    await turns(2)
    leaver.cancel()
    await turns(2)
    backend.gate.set()
    assert await stayer == 4
    assert leaver.cancelled()


async def test_who_waits_hears_of_a_round_that_was_cancelled() -> None:
    """A worker would wait for ever for an answer that nobody is going to give."""
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test")
    waiting = asyncio.create_task(batcher.submit(1))
    await turns(2)
    for task in asyncio.all_tasks():
        if task.get_name() == "rowlock: test":
            task.cancel()
    with pytest.raises(ConnectionAbortedError):
        await waiting
    backend.gate.set()
    assert await batcher.submit(2) == 4
