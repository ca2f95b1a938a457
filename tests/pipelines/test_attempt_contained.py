"""Tests of host code within a transaction of ours: what it raises is told as the host's, and
never passes for the database's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from rowlock.database.faults import is_transient
from rowlock.errors import HostCodeError
from rowlock.pipelines.attempt import contained

REFUSED = IntegrityError("INSERT", {}, Exception("there is one already"))


async def raise_(error: BaseException) -> None:
    raise error


async def test_what_host_code_returns_comes_out() -> None:
    """Loader options of the host would be lost, or its arguments be mixed up."""

    async def answer(*arguments: object) -> Any:
        return arguments

    assert await contained(answer, 1, "two") == (1, "two")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError("no mail server"), "TimeoutError: no mail server"),
        (ConnectionRefusedError("no mail server"), "ConnectionRefusedError: no mail server"),
        (asyncio.CancelledError(), "a cancellation escaped from process"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_host_code_raises_is_told_as_the_hosts(error: BaseException, text: str) -> None:
    """A timeout of the host's own would be waited out as if the database were away, and nobody
    be told what it was.
    """
    with pytest.raises(HostCodeError, match=text) as caught:
        await contained(raise_, error)
    assert not is_transient(caught.value)


async def test_what_host_code_raises_is_the_cause() -> None:
    """The traceback of a host's own error would be nowhere."""
    error = LookupError("no such disk")
    with pytest.raises(HostCodeError) as caught:
        await contained(raise_, error)
    assert caught.value.__cause__ is error


async def test_what_the_database_said_to_the_host_comes_out_as_it_is() -> None:
    """A constraint that the host's own statement broke would not be known for what it is."""
    with pytest.raises(IntegrityError) as caught:
        await contained(raise_, REFUSED)
    assert caught.value is REFUSED
