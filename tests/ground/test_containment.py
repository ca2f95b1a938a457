"""Tests of containment: a cancellation that escapes from code of the host is an error."""

from __future__ import annotations

import asyncio

import pytest

from rowlock.errors import HostCodeError
from rowlock.tasks import as_host_code
from rowlock.testing import virtual_time


async def raising(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


@virtual_time
async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    """It would pass for ours: work would be released and begun again without an end."""
    with pytest.raises(HostCodeError, match="a CancelledError escaped"):
        await as_host_code(lambda: raising(asyncio.CancelledError()))


@virtual_time
async def test_a_cancellation_that_was_asked_for_goes_through() -> None:
    """A shutdown would be told as a failure of the host's, and no timeout could go off."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await as_host_code(asyncio.Event().wait)
    task = asyncio.create_task(as_host_code(asyncio.Event().wait))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
