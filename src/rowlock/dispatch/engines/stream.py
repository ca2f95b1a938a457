"""The events of an attempt on this machine: a beat while nothing comes, an end that comes once, and nothing left behind.

Not a generator: one that was never begun is closed without a word, and its worker would stay counted as busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Self

from rowlock.dispatch.task import Completed, Event, Failed, Heartbeat
from rowlock.errors import WorkerGone, describe

logger = logging.getLogger(__name__)


class Stream:
    """Events of `source`, with a `Heartbeat` first and whenever none came for `beat_s`; what a handler raises is a `Failed`.

    Args:
        source: the events as they come.
        beat_s: in seconds; None where the source beats by itself.
        on_end: called once, when the attempt has really ended.
    """

    def __init__(
        self, source: AsyncGenerator[Event, None], *, beat_s: float | None, on_end: Callable[[], None]
    ) -> None:
        self._source = source
        self._beat_s = beat_s
        self._on_end = on_end
        self._is_new = True
        self._coming: asyncio.Task[Event | None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._closing is not None:
            raise StopAsyncIteration
        if self._is_new:
            self._is_new = False
            return Heartbeat()
        if self._coming is None:
            self._coming = asyncio.create_task(self._next(), name="rowlock: a handler")
        await asyncio.wait({self._coming}, timeout=self._beat_s)
        if not self._coming.done():
            return Heartbeat()
        ended, self._coming = self._coming, None
        event = Failed("internal", "the handler let a cancellation escape") if ended.cancelled() else ended.result()
        if event is None:
            await self.aclose()
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Cancel the attempt, and wait for its end, however long that takes: as long as it runs, nobody else may have its row."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="rowlock: close an attempt")
            self._closing.add_done_callback(lambda _: self._on_end())
        await asyncio.wait({self._closing})

    async def _next(self) -> Event | None:
        try:
            return await anext(self._source)
        except StopAsyncIteration:
            return None
        except (asyncio.CancelledError, WorkerGone):
            raise
        except BaseException as error:  # noqa: BLE001 - the handler is host code and may raise anything
            return Failed("internal", describe(error))

    async def _close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait({self._coming})
        try:
            await self._source.aclose()
        except asyncio.CancelledError:
            raise
        except BaseException:
            logger.exception("An attempt failed while it was closed")


def is_last(event: Event) -> bool:
    """Whether nothing comes after `event`."""
    return isinstance(event, Completed | Failed)
