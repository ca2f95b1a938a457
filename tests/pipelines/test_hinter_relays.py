"""Tests of hints that go on to other processes, and of those that fail on their way."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

from rowlock import PipelineHinter, hint_after_commit
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .told import Line, told


def test_a_relay_hears_every_hint() -> None:
    """Other replicas would be hinted only where this one has nobody for it, or only where it has."""
    hinter, heard, passed_on = PipelineHinter(), list[str](), list[str]()
    hinter.attach("Volume", lambda: heard.append("woken"))
    hinter.attach_relay(passed_on.append)
    asked: list[Any] = [Volume, "Run", Volume()]
    for model in asked:
        hinter.hint_fetch(model)
    assert (heard, passed_on) == (["woken", "woken"], ["Volume", "Run", "Volume"])
    assert hinter.wake("Volume")
    assert not hinter.wake("Run")
    assert len(passed_on) == 3, "what came from elsewhere is not sent back"


def test_a_detached_relay_hears_nothing() -> None:
    """A line that is closed would be written to; or the other one be closed with it."""
    hinter, first, second = PipelineHinter(), list[str](), list[str]()
    relays = [first.append, second.append]
    for relay in relays:
        hinter.attach_relay(relay)
    hinter.detach_relay(relays[0])
    hinter.detach_relay(relays[0])
    hinter.hint_fetch(Volume)
    assert (first, second) == ([], ["Volume"])
    hinter.detach_relay(relays[1])
    assert not hinter.reaches(Volume)


def test_what_others_may_run_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A process that only sends hints would warn of every model."""
    hinter = PipelineHinter()
    hinter.attach_relay(lambda _name: None)
    with caplog.at_level(logging.WARNING, logger="rowlock"):
        hinter.hint_fetch(Volume)
    assert told(caplog, "hint") == []
    assert hinter.reaches(Volume)
    assert hinter.reaches("Anything")


def test_whom_a_hint_reaches() -> None:
    """A held row that is let go would wait for the next look, or nobody be asked for it in vain."""
    hinter = PipelineHinter()
    hinter.attach("Volume", lambda: None)
    assert [hinter.reaches(model) for model in (Volume, "Volume", Run, "Run")] == [True, True, False, False]


def test_all_can_be_woken_at_once() -> None:
    """After a line was lost, hints that it had carried would be missed; or each be sent round again."""
    hinter, heard, passed_on = PipelineHinter(), list[str](), list[str]()
    for name in ("Volume", "Run"):
        hinter.attach(name, lambda name=name: heard.append(name))
    hinter.attach_relay(passed_on.append)
    hinter.wake_all()
    assert (heard, passed_on) == (["Volume", "Run"], [])


async def test_a_hint_that_fails_undoes_no_commit(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A service would be told that its commit failed, though it is there; and the hints behind it be lost."""
    hinter, heard, error = PipelineHinter(), list[str](), RuntimeError("the line is gone")

    def fail() -> None:
        raise error

    hinter.attach("Volume", fail)
    hinter.attach("Run", lambda: heard.append("Run"))
    async with sqlite_database.session_factory() as session:
        await session.execute(text("SELECT 1"))
        hint_after_commit(session, Volume, Run, hinter=hinter)
        await session.commit()
    assert heard == ["Run"]
    assert told(caplog, "hint") == [Line("A callback for hints of Volume failed", {"model": "Volume"}, repr(error))]


async def test_a_scoped_session_is_the_one_of_its_scope(sqlite_database: TemporaryDatabase) -> None:
    """A host that passes its registry instead of a session would wait for the next look."""
    hinter, heard = PipelineHinter(), list[str]()
    hinter.attach("Volume", lambda: heard.append("Volume"))
    registry: async_scoped_session[AsyncSession] = async_scoped_session(
        sqlite_database.session_factory, scopefunc=lambda: "this one"
    )
    session: Any = registry()
    await session.execute(text("SELECT 1"))
    hint_after_commit(registry, Volume, hinter=hinter)
    await session.commit()
    assert heard == ["Volume"]
    await registry.remove()
