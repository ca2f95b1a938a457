"""Batches: gathered while busy, at once when idle, and one bad request alone in its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from rowlock.database import batcher as batcher_module
from rowlock.database.batcher import BATCH_MAX, GROWS_AFTER, STATEMENTS_FIRST, Batcher, BatchLimit
from rowlock.errors import TransactionTimeout
from rowlock.testing import virtual_time

from .scenes import turns

TIMEOUT = timedelta(seconds=10)


class Backend:
    """Answers with the request doubled; notes its batches; waits at a gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.refused = -1
        self.most = BATCH_MAX
        self.too_many: Exception = TransactionTimeout(purpose="test", timeout_s=10)
        self.statement_s = 0.0

    async def run(self, requests: Sequence[int]) -> list[int]:
        self.batches.append(list(requests))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if len(requests) > self.most:
            raise self.too_many
        if self.statement_s:
            await asyncio.sleep(self.statement_s * len(requests))
        if self.refused in requests:
            raise ValueError(f"{self.refused} is refused")
        return [2 * request for request in requests]


async def test_a_lone_request_starts_at_once() -> None:
    """When it is quiet, an outcome would wait for company."""
    backend = Backend()
    assert await Batcher(backend.run, name="test", timeout=TIMEOUT).submit(1) == 2
    assert backend.batches == [[1]]


async def test_what_comes_while_busy_shares_the_next_batch() -> None:
    """Under load, each request would cost a round trip of its own."""
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
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
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    await asyncio.gather(*(batcher.submit(number) for number in range(7)))
    assert [len(batch) for batch in backend.batches] == [3, 3, 1]


async def test_one_bad_request_fails_alone() -> None:
    """Everybody in its batch would get its error."""
    backend = Backend()
    backend.refused = 2
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    results = await asyncio.gather(*map(batcher.submit, (1, 2, 3)), return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], ValueError)


async def test_an_outage_is_not_tried_once_for_each_request() -> None:
    """A database that is away would be asked, and waited for, once for each row in hand."""
    backend = Backend()
    backend.error = ConnectionRefusedError()
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    results = await asyncio.gather(*map(batcher.submit, range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionRefusedError] * 5
    assert len(backend.batches) == 1


async def test_a_caller_that_is_cancelled_takes_nobody_with_it() -> None:
    """The cancellation of one item would break off the transaction of others."""
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
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
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    waiting = asyncio.create_task(batcher.submit(1))
    await turns(2)
    assert batcher._round is not None
    batcher._round.cancel()
    with pytest.raises(ConnectionAbortedError):
        await waiting
    backend.gate.set()
    assert await batcher.submit(2) == 4


async def test_who_waits_behind_a_round_that_was_cancelled_is_answered() -> None:
    """What waits for the next batch would wait for a request that may never come, and a drain
    with it.
    """
    backend = Backend()
    backend.gate.clear()
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    first = asyncio.create_task(batcher.submit(1))
    await turns(2)
    behind = asyncio.create_task(batcher.submit(2))
    await turns(2)
    assert batcher._round is not None
    batcher._round.cancel()
    backend.gate.set()
    with pytest.raises(ConnectionAbortedError):
        await first
    assert await behind == 4


class QueryCanceledError(Exception):
    sqlstate = "57014"


TOO_MUCH = (
    TransactionTimeout(purpose="test", timeout_s=10),
    DBAPIError("", {}, QueryCanceledError()),
)


@pytest.mark.parametrize("error", TOO_MUCH, ids=["our timeout", "statement_timeout"])
async def test_a_batch_that_ran_out_of_time_is_tried_in_smaller_ones(error: Exception) -> None:
    """It would be tried again at the same size, and run out of time again, for ever."""
    backend = Backend()
    backend.most, backend.too_many = 2, error
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    answers = await asyncio.gather(*(batcher.submit(number) for number in range(8)))
    assert answers == [2 * number for number in range(8)]
    assert [len(batch) for batch in backend.batches[:4]] == [8, 4, 2, 2]
    assert all(
        earlier[0] <= later[0]
        for earlier, later in zip(backend.batches, backend.batches[1:], strict=False)
    )


async def test_nothing_is_split_in_a_hurry() -> None:
    """A shutdown would wait for one transaction after another, each of which runs out of time,
    far beyond its bound.
    """
    backend = Backend()
    backend.most = 0
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT, is_grace_over=lambda: True)
    results = await asyncio.gather(*map(batcher.submit, range(800)), return_exceptions=True)
    assert {type(result) for result in results} == {TransactionTimeout}
    assert [len(batch) for batch in backend.batches] == [BATCH_MAX]


async def test_one_that_never_ends_fails_alone() -> None:
    """One request that waits for somebody's lock would fail all others with its own error, or
    keep them waiting for ever.
    """
    backend = Backend()
    backend.most = 0
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    results = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [TransactionTimeout] * 3
    assert backend.batches[-3:] == [[0], [1], [2]]


async def test_one_bad_request_of_many_costs_few_batches() -> None:
    """One value that the database refuses would cost each of its neighbours a transaction of its
    own.
    """
    backend = Backend()
    backend.refused = 300
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT)
    results = await asyncio.gather(*map(batcher.submit, range(BATCH_MAX)), return_exceptions=True)
    assert [number for number, result in enumerate(results) if isinstance(result, Exception)] == [
        300
    ]
    assert len(backend.batches) < 25


@virtual_time
async def test_a_batch_keeps_within_its_time() -> None:
    """Batches of requests that need a statement each would outlast their transaction where a
    round trip takes long.
    """
    backend = Backend()
    backend.statement_s = 0.1
    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT, statements_of=lambda _: 1)
    await asyncio.gather(*(batcher.submit(number) for number in range(200)))
    sizes = [len(batch) for batch in backend.batches]
    assert sizes[0] == STATEMENTS_FIRST
    assert max(sizes[1:]) <= 25


@virtual_time
async def test_time_spent_waiting_for_a_turn_is_not_the_batch_s_own() -> None:
    """Where many wait for SQLite's write lock, batches would shrink to one request each, and
    wait for it more often.
    """
    batcher: Batcher[int, int]

    async def run(requests: Sequence[int]) -> Sequence[int]:
        sizes.append(len(requests))
        await asyncio.sleep(9)
        batcher.begun()
        return requests

    sizes: list[int] = []
    batcher = Batcher(run, name="test", timeout=TIMEOUT)
    await asyncio.gather(*(batcher.submit(number) for number in range(3 * BATCH_MAX)))
    assert sizes == [BATCH_MAX] * 3


def test_a_limit_grows_again_when_the_database_is_fast() -> None:
    """After one slow hour, every outcome would cost a transaction of its own until the next
    restart.
    """
    limit = BatchLimit(TIMEOUT)
    for _ in range(12):
        limit.shrink(requests=limit.requests, statements=limit.statements)
    assert (limit.requests, limit.statements) == (1, 1)
    for _ in range(12 * GROWS_AFTER):
        limit.learn(requests=limit.requests, statements=limit.statements, took_s=0.5)
    assert (limit.requests, limit.statements) == (BATCH_MAX, BATCH_MAX)


def test_a_limit_grows_by_full_batches_only() -> None:
    """A batch of one that was fast says nothing about one of five hundred."""
    limit = BatchLimit(TIMEOUT)
    limit.learn(requests=100, statements=100, took_s=10)
    assert (limit.requests, limit.statements) == (25, 25)
    for _ in range(GROWS_AFTER):
        limit.learn(requests=24, statements=24, took_s=0.1)
        limit.learn(requests=25, statements=25, took_s=1.3)
    assert (limit.requests, limit.statements) == (25, 25)
    for _ in range(GROWS_AFTER):
        assert (limit.requests, limit.statements) == (25, 25)
        limit.learn(requests=25, statements=0, took_s=1.2)
    assert (limit.requests, limit.statements) == (50, 25)


def test_requests_that_share_statements_are_bounded_apart() -> None:
    """Outcomes that share one statement would be written fifty at a time for those that do not."""
    limit = BatchLimit(TIMEOUT)
    assert limit.fitting([0] * 1000) == BATCH_MAX
    assert limit.fitting([1] * 1000) == STATEMENTS_FIRST
    assert limit.fitting([0] * 100 + [1] * 100) == 100 + STATEMENTS_FIRST
    assert limit.fitting([STATEMENTS_FIRST + 1, 0]) == 1


@pytest.mark.parametrize("refused", [-1, 1], ids=["all are answered", "one fails"])
async def test_answers_that_are_not_waited_for_come_by_the_batch(refused: int) -> None:
    """An outcome whose batch has failed would never be settled, or settled by the answer to
    another one's.
    """
    backend, answers = Backend(), list[tuple[int, int | None, bool]]()
    backend.refused = refused

    def answered(
        requests: Sequence[int], results: Sequence[int] | None, error: Exception | None
    ) -> None:
        for number, request in enumerate(requests):
            answers.append((request, results and results[number], error is not None))

    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT, answered=answered)
    waiting = asyncio.create_task(batcher.submit(3))
    await turns(1)
    for number in (0, 1, 2):
        batcher.submit_nowait(number)
    assert await waiting == 6
    await turns()
    assert sorted(answers) == [
        (number, None if number == refused else 2 * number, number == refused)
        for number in (0, 1, 2)
    ]


async def test_a_request_whose_statements_cannot_be_counted_is_its_caller_s() -> None:
    """One request that raises when it is looked at would end the round of all who wait."""
    backend, looked_at = Backend(), list[int]()

    def statements_of(request: int) -> int:
        looked_at.append(request)
        if request == 2 or looked_at.count(request) > 1:
            raise RuntimeError("closed")
        return 1

    batcher = Batcher(backend.run, name="test", timeout=TIMEOUT, statements_of=statements_of)
    results = await asyncio.gather(*map(batcher.submit, (1, 2, 3)), return_exceptions=True)
    assert (results[0], results[2], type(results[1])) == (2, 6, RuntimeError)
    assert looked_at == [1, 2, 3]


# ---------------------------------------------------------------- rounds that are over early


async def doubled(requests: Sequence[int]) -> list[int]:
    return [2 * number for number in requests]


async def test_who_waits_for_a_round_that_was_cancelled_before_its_first_step_is_answered() -> None:
    """The last outcome of a quiet pipeline would wait for a request that may never come, its
    lease be renewed for ever.
    """
    batcher = Batcher(doubled, name="test", timeout=TIMEOUT)
    waiting = asyncio.create_task(batcher.submit(1))
    await turns(1)
    assert batcher._round is not None
    batcher._round.cancel()
    assert await waiting == 2


async def test_a_round_that_is_over_before_it_is_known_has_no_other_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where tasks begin at once two rounds would be under way, and an outcome be told the answer
    to another one's.
    """
    main, running, answers = asyncio.current_task(), [0, 0], list[tuple[int, int | None]]()
    begin = asyncio.create_task

    def at_once(work: Any, *, name: str) -> Any:
        monkeypatch.setattr(asyncio, "create_task", begin)
        with pytest.raises(StopIteration):
            work.send(None)
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        return ended

    async def run(requests: Sequence[int]) -> list[int]:
        running[0] += 1
        running[1] = max(running)
        try:
            if requests == [1] and not answers:
                raise ConnectionRefusedError
            if asyncio.current_task() is not main:
                await turns(2)
            return await doubled(requests)
        finally:
            running[0] -= 1

    def answered(
        requests: Sequence[int], results: Sequence[int] | None, error: Exception | None
    ) -> None:
        answers.extend(zip(requests, results or [None] * len(requests), strict=True))
        for request in requests if error is not None else ():
            # As the settler does with a failure, in a task of its own that begins at once.
            batcher.submit_nowait(request)

    batcher: Batcher[int, int]
    batcher = Batcher(run, name="test", timeout=TIMEOUT, answered=answered)
    monkeypatch.setattr(asyncio, "create_task", at_once)
    batcher.submit_nowait(1)
    batcher.submit_nowait(2)
    await turns()
    assert sorted(answers, key=str) == [(1, 2), (1, None), (2, 4)]
    assert running == [0, 1]
