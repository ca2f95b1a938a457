"""Group what many workers ask the database for: while one round trip is under way, the next batch gathers.

Nobody waits when it is quiet, since the first request starts at once; everybody shares when it is busy. If a batch fails for a
reason that lies in one of its requests, each is run alone, so that one bad request spoils nobody else's.

Source: group commit, as databases do it with their log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar, cast

from rowlock.leases.faults import is_transient
from rowlock.logs import get_logger

logger = get_logger(__name__)

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

Done = Callable[[RequestT, ResultT | None, Exception | None], None]
"""Is told a request and the answer to it, or what went wrong."""

BATCH_MAX = 500
"""Most requests of one batch. Beyond it a larger batch gains nothing measurable."""


class Batcher(Generic[RequestT, ResultT]):
    """Runs requests in batches, one batch at a time, in the order in which they came.

    What waits is bounded by who asks: callers of `submit` wait for their answers, those of `hand_in` have a bound of their own.
    """

    def __init__(self, run: Callable[[Sequence[RequestT]], Awaitable[Sequence[ResultT]]], *, name: str) -> None:
        self._run = run
        self._name = name
        self._waiting: deque[tuple[RequestT, Done[RequestT, ResultT]]] = deque()
        self._round: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Batcher {self._name}, {len(self._waiting)} waiting, {'busy' if self._round else 'idle'}>"

    async def submit(self, request: RequestT) -> ResultT:
        """Return the answer to `request`, or raise what its batch raised.

        A caller that is cancelled stops waiting; its request is carried out all the same.
        """
        answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

        def done(_request: RequestT, result: ResultT | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(cast("ResultT", result))
            else:
                answer.set_exception(error)

        self.hand_in(request, done)
        return await answer

    def hand_in(self, request: RequestT, done: Done[RequestT, ResultT]) -> None:
        """Carry out `request` and call `done` with it, its answer and None, or with it, None and what its batch raised."""
        self._waiting.append((request, done))
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._work(), name=f"rowlock: {self._name}")

    async def _work(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            await self._answer(batch)

    async def _answer(self, batch: list[tuple[RequestT, Done[RequestT, ResultT]]]) -> None:
        try:
            results = await self._run([request for request, _ in batch])
        except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            await self._fail(batch, error)
            return
        for (request, done), result in zip(batch, results, strict=True):
            self._tell(done, request, result, None)

    async def _fail(self, batch: list[tuple[RequestT, Done[RequestT, ResultT]]], error: BaseException) -> None:
        if len(batch) > 1 and isinstance(error, Exception) and not is_transient(error):
            for one in batch:
                await self._answer([one])
            return
        # A round that is cancelled from outside says nothing of its requests: for those who wait it is like a lost connection.
        for request, done in batch:
            self._tell(
                done, request, None, error if isinstance(error, Exception) else ConnectionAbortedError(self._name)
            )
        if isinstance(error, asyncio.CancelledError):
            raise error

    def _tell(
        self, done: Done[RequestT, ResultT], request: RequestT, result: ResultT | None, error: Exception | None
    ) -> None:
        try:
            done(request, result, error)
        except BaseException:
            # The others of the batch wait for their answers, and those behind them for the next batch.
            with suppress(BaseException):
                logger.exception("%s: what was to be done with an answer failed", self._name)
