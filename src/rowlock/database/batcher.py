"""Group what many workers ask the database for: while one round trip is under way, the next batch
gathers.

A quiet batcher starts the first request at once; a busy one lets requests share. If a batch fails
for a reason that lies in one of its requests, it is halved until that one is alone. A batch that
ran out of time is tried again in smaller ones, and `BatchLimit` learns from how long each took, so
that none outlasts its own transaction for long.

Source: group commit, as databases do it with their log; the limit grows and shrinks as TCP's window
does.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Generic, TypeAlias, TypeVar

from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_outage, may_be_of_the_size

RETRY_DELAY_S = 0.05
RETRY_DELAY_S_MAX = 1.0
"""First and longest rest between two tries, in seconds."""


class Retries:
    """The failed tries of one piece of work. `gives_up_at` is asked until when others may be made,
    given when the first one failed: it may have lasted as long as the host blocked its loop.
    """

    def __init__(self, gives_up_at: Callable[[float], float]) -> None:
        self.count = 0
        self._gives_up_at = gives_up_at
        self._failed_at = math.inf

    def failed(self) -> None:
        self.count += 1
        self._failed_at = min(self._failed_at, monotonic())

    @property
    def are_over(self) -> bool:
        return monotonic() >= self._gives_up_at(self._failed_at)

    async def rest(self) -> None:
        await sleep(exponential(self.count, first_s=RETRY_DELAY_S, most_s=RETRY_DELAY_S_MAX))


RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

Answered: TypeAlias = Callable[
    [Sequence[RequestT], Sequence[ResultT] | None, Exception | None], None
]
"""Called with requests of one batch and their results, or what went wrong."""
_Entry: TypeAlias = tuple[RequestT, asyncio.Future[ResultT] | None, int]
"""A request, the future of a caller that waits, and the statements that it needs for itself."""

BATCH_MAX = 500
"""Most requests of one batch: a larger one gains nothing measurable."""
STATEMENTS_FIRST = 50
"""Most requests of the first batch that need a statement each."""
BATCH_SHARE = 0.25
"""A batch is to end within this share of the time that its transaction may take."""
GROWS_AFTER = 4
"""Full and fast batches in a row after which a limit grows."""


class BatchLimit:
    """Requests that need a statement each are limited apart: a round trip costs those only."""

    def __init__(self, timeout: timedelta) -> None:
        self._wanted_s = BATCH_SHARE * timeout.total_seconds()
        self.requests = BATCH_MAX
        self.statements = min(STATEMENTS_FIRST, BATCH_MAX)
        self._fast = 0

    def fitting(self, costs: Iterable[int]) -> int:
        """At least one fits."""
        count = statements = 0
        for cost in costs:
            statements += cost
            if count and (count >= self.requests or statements > self.statements):
                break
            count += 1
        return count

    def learn(self, *, requests: int, statements: int, took_s: float) -> None:
        if took_s > self._wanted_s:
            self.shrink(requests=requests, statements=statements, share=self._wanted_s / took_s)
        elif 2 * took_s <= self._wanted_s and (
            requests >= self.requests or statements >= self.statements
        ):
            self._fast += 1
        if self._fast < GROWS_AFTER:
            return
        self._fast = 0
        if requests >= self.requests:
            self.requests = min(2 * self.requests, BATCH_MAX)
        if statements >= self.statements:
            self.statements = min(2 * self.statements, BATCH_MAX)

    def shrink(self, *, requests: int, statements: int, share: float = 0.5) -> None:
        """Allow `share` of what a batch had, as after one that ran out of time."""
        self._fast = 0
        self.requests = max(1, int(share * requests))
        if statements:
            self.statements = max(1, int(share * statements))


class Batcher(Generic[RequestT, ResultT]):
    """Runs requests in batches, one batch at a time, in order. The callers bound what waits."""

    def __init__(
        self,
        run: Callable[[Sequence[RequestT]], Awaitable[Sequence[ResultT]]],
        *,
        name: str,
        timeout: timedelta,
        answered: Answered[RequestT, ResultT] = lambda _requests, _results, _error: None,
        statements_of: Callable[[RequestT], int] = lambda _request: 0,
        is_grace_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`answered`: takes answers to `submit_nowait`, and raises nothing; `statements_of`: how
        many statements a request needs for itself alone; `is_grace_over`: whether what fails is not
        to be tried again in smaller batches.
        """
        self._run, self._name = run, name
        self._answered = answered
        self._limit = BatchLimit(timeout)
        self._statements_of = statements_of
        self._is_grace_over = is_grace_over
        self._began_at = 0.0
        self._waiting: deque[_Entry[RequestT, ResultT]] = deque()
        self._in_flight: list[_Entry[RequestT, ResultT]] = []
        self._round: asyncio.Task[None] | None = None
        self._is_working = False

    async def submit(self, request: RequestT) -> ResultT:
        """The request of a caller that is cancelled is carried out all the same."""
        answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self.submit_nowait(request, answer)
        return await answer

    def submit_nowait(
        self, request: RequestT, answer: asyncio.Future[ResultT] | None = None
    ) -> None:
        """Carry out `request`. Without an `answer` future, its result is passed to `answered`."""
        # Counted here: `statements_of` may run code of the caller's, whose errors are the caller's.
        self._waiting.append((request, answer, self._statements_of(request)))
        if not self._is_working:
            self._begin()

    def _begin(self) -> None:
        # Asked instead of the task: one that begins within the call which makes it works before
        # there is a task to ask.
        self._is_working = True
        self._round = asyncio.create_task(self._work(), name=f"rowlock: {self._name}")
        self._round.add_done_callback(self._ended)

    def _ended(self, _round: asyncio.Task[None]) -> None:
        # A callback: a task that is cancelled before its first step runs no line. For callers a
        # cancelled round is like a lost connection.
        self._is_working = False
        left, self._in_flight = self._in_flight, []
        self._answer_all(left, None, ConnectionAbortedError(self._name))
        if self._waiting and not self._is_working:
            self._begin()

    async def wait_until_idle(self) -> None:
        while self._is_working and self._round is not None:
            await asyncio.wait({self._round})

    def begun(self) -> None:
        """Count the time of this batch from now: until now it waited for a connection, or for
        SQLite's write lock, for which smaller batches would wait more often.
        """
        self._began_at = monotonic()

    async def _work(self) -> None:
        while self._waiting:
            count = self._limit.fitting(statements for _, _, statements in self._waiting)
            batch = [self._waiting.popleft() for _ in range(count)]
            self._in_flight = [*batch]
            await self._answer(batch)

    async def _answer(self, batch: list[_Entry[RequestT, ResultT]]) -> None:
        self.begun()
        try:
            results = await self._run([request for request, _, _ in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must get an answer
            await self._fail(batch, error)
            return
        took_s = monotonic() - self._began_at
        self._limit.learn(requests=len(batch), statements=_statements(batch), took_s=took_s)
        del self._in_flight[: len(batch)]
        self._answer_all(batch, results, None)

    async def _fail(self, batch: list[_Entry[RequestT, ResultT]], error: Exception) -> None:
        behind: list[_Entry[RequestT, ResultT]] = []
        is_alone, is_of_the_size = len(batch) == 1, may_be_of_the_size(error)
        if not is_alone and is_of_the_size and not self._is_grace_over():
            self._limit.shrink(requests=len(batch), statements=_statements(batch))
            # Before all others, and in batches of what is allowed now: each of these is smaller
            # than the one that failed.
            self._waiting.extendleft(reversed(batch))
            del self._in_flight[: len(batch)]
            return
        if not is_alone and is_of_the_size:
            # There is no time for smaller batches, nor for those behind: each may take as long.
            behind = [*self._waiting]
            self._waiting.clear()
        elif not is_alone and not is_outage(error):
            half = len(batch) // 2
            await self._answer(batch[:half])
            await self._answer(batch[half:])
            return
        del self._in_flight[: len(batch)]
        self._answer_all([*batch, *behind], None, error)

    def _answer_all(
        self,
        entries: Sequence[_Entry[RequestT, ResultT]],
        results: Sequence[ResultT] | None,
        error: Exception | None,
    ) -> None:
        left = []
        for number, (_, answer, _) in enumerate(entries):
            if answer is None:
                left.append(number)
            elif not answer.done():
                if results is not None:
                    answer.set_result(results[number])
                elif error is not None:
                    answer.set_exception(error)
        if left:
            of_left = None if results is None else [results[number] for number in left]
            self._answered([entries[number][0] for number in left], of_left, error)


def _statements(batch: Iterable[_Entry[RequestT, ResultT]]) -> int:
    return sum(statements for _, _, statements in batch)
