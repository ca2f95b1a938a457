"""What a host passes at run time is refused before a database sees it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from rowlock.errors import ConfigurationError
from rowlock.streams.inputs.event_log import EventLog
from rowlock.streams.settings import NUMBER_MAX, check_party, check_whole_number, seconds_of
from rowlock.testing import TemporaryDatabase

from ..walk.flows import Bank, add_up, open_bank

pytestmark = pytest.mark.either_database

NO_NAMES = ["", "x" * 256, "a\0b", "\ud800", 5, None, b"a"]
NO_NUMBERS = [-1, NUMBER_MAX + 1, 1.5, True, "1", None, math.nan]
NO_TIMES = ["5", None, math.nan, True]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names(name: Any) -> None:
    """One database would store the name, and the driver of another one would break with it."""
    with pytest.raises(ConfigurationError, match="the name of a producer"):
        check_party(name, "a producer")
    check_party("device/7\n", "a producer")


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_numbers(number: Any) -> None:
    """SQLite would store half a number, and PostgreSQL none."""
    with pytest.raises(ConfigurationError, match="a step is 0 to"):
        check_whole_number(number, "a step")
    for right in (0, NUMBER_MAX):
        check_whole_number(right, "a step")
    check_whole_number(-1, "a step", low=-1)


@pytest.mark.parametrize("time", NO_TIMES)
def test_times(time: Any) -> None:
    """A wait would break in the middle, with an error of the interpreter."""
    with pytest.raises(ConfigurationError, match="a number of seconds or a timedelta"):
        seconds_of(time)
    assert [seconds_of(one) for one in (5, timedelta(seconds=2), -1, math.inf)] == [
        5,
        2,
        0,
        math.inf,
    ]


Call = Callable[[Bank, Any], Awaitable[Any]]


def _log(bank: Bank) -> EventLog[int]:
    known: EventLog[int] | None = bank.streams.logs.get("numbers")
    return known or bank.streams.log("numbers", int, key=str)


async def _append(bank: Bank, **options: Any) -> None:
    async with bank.sessions.begin() as session:
        await _log(bank).append(session, [1], **options)


async def _last_seq(bank: Bank, producer: Any) -> None:
    async with bank.sessions() as session:
        await _log(bank).last_seq(session, producer)


async def _consume(bank: Bank, **options: Any) -> None:
    async for _ in bank.flow.outputs["seen"].consume(bank.sessions, follow=False, **options):
        pass


async def _snapshot(bank: Bank, timeout: Any) -> None:
    async with bank.flow.snapshot(bank.sessions, timeout=timeout):
        pass


async def _in_session(bank: Bank, call: Callable[..., Awaitable[Any]], *given: Any) -> None:
    async with bank.sessions.begin() as session:
        await call(session, *given)


CALLS: dict[str, tuple[Call, Any]] = {
    "producer": (lambda bank, bad: _append(bank, producer=bad, seq=1), "a\0"),
    "number of a producer": (lambda bank, bad: _append(bank, producer="p", seq=bad), 1.5),
    "producer asked for": (_last_seq, "a\0"),
    "consumer": (lambda bank, bad: _consume(bank, consumer=bad), "a\0"),
    "begin of a consumer": (lambda bank, bad: _consume(bank, after=bad), -2),
    "discard": (lambda bank, bad: _in_session(bank, bank.flow.outputs["seen"].discard, bad), 1.5),
    "unpark": (lambda bank, bad: _in_session(bank, bank.flow.unpark, bad), "x"),
    "inputs": (lambda bank, bad: _in_session(bank, bank.flow.inputs_of, bad), "x"),
    "parts": (lambda bank, bad: _in_session(bank, bank.flow.parts_of, bad), "x"),
    "begin of a verification": (lambda bank, bad: bank.flow.verify(bank.sessions, bad, 2), -1),
    "end of a verification": (lambda bank, bad: bank.flow.verify(bank.sessions, 5, bad), 2),
    "time of a wait": (lambda bank, bad: bank.flow.wait_for(bank.sessions, 1, timeout=bad), "5"),
    "time of a snapshot": (_snapshot, "5"),
}


MATCHES = "whole number|the name of a|a number of seconds"


async def test_wrong_arguments(database: TemporaryDatabase) -> None:
    """A slip would be a row that means nothing, an answer to another question, or an error of the
    driver in the caller's transaction.
    """
    bank = await open_bank(database)
    add_up(bank)
    for call, bad in CALLS.values():
        with pytest.raises(ConfigurationError, match=MATCHES):
            await call(bank, bad)
    assert [await bank.count(table) for table in ("appends", "log", "cursors")] == [0, 0, 0]
