"""Tests of hints that go on to other processes, and of those that fail on their way."""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

from rowlock import Apply, PipelineHinter, hint_after_commit
from rowlock.pipelines import settler
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, Volume, VolumePipeline
from .scenes import add, read, turns, until
from .told import Line, told


def test_a_relay_hears_every_hint() -> None:
    """Other replicas would be hinted only where this one has nobody for it, or only where it
    has.
    """
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


def test_whoever_hints_may_be_left_out() -> None:
    """A part that knows already would look at all anew; or its hint would reach nobody else."""
    hinter, heard = PipelineHinter(), list[str]()

    def own() -> None:
        heard.append("own")

    hinter.attach("Volume", own)
    hinter.attach("Volume", lambda: heard.append("other"))
    hinter.attach_relay(heard.append)
    hinter.hint_fetch(Volume, but=own)
    assert heard == ["other", "Volume"]


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
    assert [hinter.reaches(model) for model in (Volume, "Volume", Run, "Run")] == [
        True,
        True,
        False,
        False,
    ]


def test_all_can_be_woken_at_once() -> None:
    """After a line was lost, hints that it had carried would be missed; or each be sent round
    again.
    """
    hinter, heard, passed_on = PipelineHinter(), list[str](), list[str]()
    for name in ("Volume", "Run"):
        hinter.attach(name, lambda name=name: heard.append(name))
    hinter.attach_relay(passed_on.append)
    hinter.wake_all()
    assert (heard, passed_on) == (["Volume", "Run"], [])


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


# ---------------------------------------------------------------- callbacks that raise

ERRORS = [KeyError("worker"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_bad_callback_keeps_no_hint_from_the_others(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """One wake of a host's would let other pipelines, and other replicas, wait for their next
    look.
    """
    hinter, heard = PipelineHinter(), list[str]()

    def fail(*_args: str) -> None:
        raise error

    for wake in (fail, lambda: heard.append("woken")):
        hinter.attach("Volume", wake)
    for relay in (fail, lambda name: heard.append(f"passed on: {name}")):
        hinter.attach_relay(relay)
    hinter.hint_fetch(Volume)
    assert heard == ["woken", "passed on: Volume"]
    assert hinter.wake("Volume")
    assert heard == ["woken", "passed on: Volume", "woken"]
    line = Line("A callback for hints of Volume failed", {"model": "Volume"}, repr(error))
    assert told(caplog, "hint")[0] == line


@pytest.mark.parametrize("broken", ["relay", "wake"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual_time
async def test_a_hint_that_fails_stops_no_pipeline(
    virtual_database: TemporaryDatabase,
    broken: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outcomes would count as being written for ever, until workers begin nothing new, and a
    drain never ends.
    """

    def fail(*_args: str) -> None:
        raise error

    monkeypatch.setattr(settler, "PENDING_MAX", 2)
    rows = await add(virtual_database, *(Volume() for _ in range(6)))
    pipeline = VolumePipeline(answer=Apply({"status": "active"}, hint=(Run, Volume)), workers_num=2)
    hinter = PipelineHinter()
    if broken == "relay":
        hinter.attach_relay(fail)
    if broken == "wake":
        hinter.attach("Run", fail)
    pipeline.start(virtual_database.session_factory, hinter)
    await until(lambda: pipeline.statistics().counters["applied"] == 6)
    await turns()
    assert (len(pipeline.run.settler), pipeline.statistics().tracked) == (0, 0)
    await pipeline.drain(timedelta(seconds=1))
    assert [(await read(virtual_database, row)).status for row in rows] == ["active"] * 6


def test_a_topic_is_hinted_like_a_model_and_may_have_no_listener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who only writes rows of a stream would be warned of each of them."""
    hinter, heard = PipelineHinter(), []
    with caplog.at_level(logging.WARNING, logger="rowlock"):
        hinter.hint_fetch("stream:usage")
    assert caplog.records == []
    hinter.attach("stream:usage", lambda: heard.append("usage"))
    hinter.hint_fetch("stream:other")
    hinter.hint_fetch("stream:usage")
    assert heard == ["usage"]


def test_an_observer_hears_every_hint() -> None:
    """A span would not be linked to the request that hinted."""
    hinter, heard, woken = PipelineHinter(), list[str](), list[str]()
    hinter.attach("Volume", lambda: woken.append("Volume"))
    hinter.attach_observer(heard.append)
    hinter.hint_fetch("Volume")
    hinter.hint_fetch("stream:usage")
    assert (heard, woken) == (["Volume", "stream:usage"], ["Volume"])
    hinter.detach_observer(heard.append)
    hinter.detach_observer(heard.append)
    hinter.hint_fetch("Volume")
    assert heard == ["Volume", "stream:usage"]


def test_an_observer_is_no_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    """A hint that nothing follows would no longer be warned of once somebody looks on."""
    hinter = PipelineHinter()
    hinter.attach_observer(lambda _name: None)
    hinter.hint_fetch("Volume")
    assert "A hint reached no pipeline: Volume" in caplog.text
    assert not hinter.reaches("Volume")


@pytest.mark.parametrize("error", [ZeroDivisionError, CancelledError])
def test_an_observer_that_fails_harms_no_hint(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The hint behind a commit would be lost, or the commit look as if it had failed."""
    hinter, woken = PipelineHinter(), list[str]()

    def fail(_name: str) -> None:
        raise error

    hinter.attach_observer(fail)
    hinter.attach("Volume", lambda: woken.append("Volume"))
    hinter.hint_fetch("Volume")
    assert woken == ["Volume"]
    assert "A callback for hints of Volume failed" in caplog.text
