"""Tests of silence: what is not heard because nobody listened is no silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from rowlock.dispatch import AttemptEvent, Heartbeat
from rowlock.dispatch.delivery import CATCH_UP_S, next_event
from rowlock.testing import virtual_time

TURNS = 20
"""How many turns of the loop an event may take from a socket to whoever waits for it."""


async def said(after: asyncio.Event) -> AsyncGenerator[AttemptEvent, None]:
    """Say something when it is time to; it takes a few turns to arrive."""
    await after.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    yield Heartbeat()


async def test_a_loop_that_was_blocked_listens_once_more() -> None:
    """Three slips of the host that block its loop would fail every row under way, whose workers
    are all well.
    """
    spoken = asyncio.Event()

    def block() -> None:
        spoken.set()
        time.sleep(0.3)

    asyncio.get_running_loop().call_later(0.02, block)
    assert isinstance(await next_event(said(spoken), within_s=0.1), Heartbeat)


async def test_a_loop_that_is_blocked_again_while_it_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that blocks its loop twice in a row would lose its attempts all the same."""
    monkeypatch.setattr("rowlock.dispatch.delivery.CATCH_UP_S", 0.1)
    spoken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        spoken.set()
        time.sleep(0.3)

    loop.call_later(0.12, block)
    assert isinstance(await next_event(said(spoken), within_s=0.1), Heartbeat)


@virtual_time
async def test_silence_has_an_end() -> None:
    """A worker that is frozen would keep its row for ever; and its attempt would not know that
    nobody listens any more.
    """
    began, events = asyncio.get_running_loop().time(), said(asyncio.Event())
    with pytest.raises(TimeoutError):
        await next_event(events, within_s=30)
    assert asyncio.get_running_loop().time() - began == 30 + CATCH_UP_S
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@virtual_time
async def test_who_is_cancelled_again_and_again_listens_no_more() -> None:
    """A generator that is still being read cannot be closed: its row would be failed, and given
    away while it cleans up.
    """
    ends: list[str] = []

    async def tidies() -> AsyncGenerator[AttemptEvent, None]:
        try:
            await asyncio.Event().wait()
            yield Heartbeat()
        finally:
            await asyncio.sleep(5)
            ends.append("tidied")

    hearing = asyncio.create_task(next_event(tidies(), within_s=30))
    for _ in range(3):
        await asyncio.sleep(1)
        hearing.cancel()
    await asyncio.wait({hearing})
    assert ends == ["tidied"]
