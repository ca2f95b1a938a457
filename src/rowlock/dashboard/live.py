"""Keeps open pages up to date: one stream of server-sent events a tab.

The one idea: a stream asks for its part of a page every two seconds, and streams of one part share
its answer (``visits.py``). A page learns that its database or server is away, by an event or by
silence; it never goes on to call itself live.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from rowlock.clock import monotonic
from rowlock.dashboard.guarding import refusal_of
from rowlock.insight.databases import wanted_within

STREAMS_MAX: Final = 64
ROWS_WATCHED_MAX: Final = 16  # most different rows that are watched at once
STREAM_S_MAX: Final = 60.0  # seconds until the page opens a new stream, which is authorized anew
LIVE_S: Final = 2.0  # the rest between two looks, in seconds
PART_S_MAX: Final = 4.0  # longest look, in seconds; then the page is told that it is not live
SEND_S_MAX: Final = 5.0  # longest time in which a browser takes what is sent, in seconds
GRACE_S: Final = 3.0  # how long a stream may take to end when the server does, in seconds
RETRY_MS: Final = 1_000

MakePart = Callable[[], Awaitable[str]]


class LiveStreams:
    """Counts the open streams."""

    def __init__(self) -> None:
        self._topics: Counter[str] = Counter()
        self._process = os.getpid()

    @property
    def is_full(self) -> bool:
        return self._open().total() >= STREAMS_MAX

    def _open(self) -> Counter[str]:
        if self._process != os.getpid():
            # A child that was forked has none of its parent's streams.
            self._topics, self._process = Counter(), os.getpid()
        return self._topics

    def enter(self, topic: str, *, is_row: bool) -> bool:
        """Count a stream, and return whether there is room for it."""
        topics = self._open()
        rows = sum(1 for one in topics if one.startswith("row:"))
        if self.is_full or (is_row and topic not in topics and rows >= ROWS_WATCHED_MAX):
            return False
        topics[topic] += 1
        return True

    def leave(self, topic: str) -> None:
        topics = self._open()
        topics[topic] -= 1
        if topics[topic] <= 0:
            del topics[topic]


class LiveResponse:
    """A stream of one topic, or the answer that there is no room for it."""

    def __init__(self, streams: LiveStreams, topic: str, make: MakePart) -> None:
        self._streams, self._topic, self._make = streams, topic, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the page is closed, the server ends or the time is over."""
        # Nothing is awaited between the look at the room and the count.
        if not self._streams.enter(self._topic, is_row=self._topic.startswith("row:")):
            full = PlainTextResponse("too many pages are open", 503, {"retry-after": "10"})
            await full(scope, receive, send)
            return
        try:
            ended = anyio.Event()
            stream = EventSourceResponse(
                live_events(self._make, ended),
                ping=0,
                send_timeout=SEND_S_MAX,
                shutdown_event=ended,
                shutdown_grace_period=GRACE_S,
            )
            # A browser that takes nothing is no error of the host's; the server closes the rest.
            with suppress(SendTimeoutError):
                await stream(scope, receive, send)
        finally:
            self._streams.leave(self._topic)


async def live_events(make: MakePart, ended: anyio.Event) -> AsyncIterator[ServerSentEvent]:
    """Yield the part when it has changed, else a beat, or why there is none."""
    ends, last = monotonic() + STREAM_S_MAX, None
    yield ServerSentEvent(event="beat", data="", retry=RETRY_MS)
    while monotonic() < ends and not ended.is_set():
        try:
            with wanted_within(PART_S_MAX):
                async with asyncio.timeout(PART_S_MAX):
                    part = await make()
        except Exception as error:  # noqa: BLE001 - of the host's database, whatever it is
            last = None
            yield ServerSentEvent(event="stale", data=refusal_of(error).sentence)
        else:
            yield ServerSentEvent(event="beat", data="") if part == last else ServerSentEvent(part)
            last = part
        with anyio.move_on_after(LIVE_S):
            await ended.wait()
