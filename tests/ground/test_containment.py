"""Tests of containment: what code of the host raises in a task of rowlock's is an error, never
the end of the event loop.
"""

from __future__ import annotations

import asyncio
import gc

import pytest

from rowlock.errors import HostCodeError
from rowlock.tasks import as_host_code, contained_task, without_exits
from rowlock.testing import virtual_time


class HostExit(BaseException):
    """One of the host's own."""


EXITS = [
    SystemExit(3),
    KeyboardInterrupt(),
    HostExit(),
    BaseExceptionGroup("two", [SystemExit(1), HostExit()]),
]


async def raising(error: BaseException) -> None:
    """Be host code that raises `error`."""
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@virtual_time
async def test_an_exit_out_of_a_task_is_an_error(error: BaseException) -> None:
    """A ``SystemExit`` that leaves a task ends the whole event loop; and no caller expects what
    is no ``Exception``.
    """
    with pytest.raises(HostCodeError, match=type(error).__name__) as raised:
        await contained_task(raising(error), name="test")
    assert raised.value.__cause__ is error


@virtual_time
async def test_what_is_an_error_already_is_told_as_it_is() -> None:
    """An outage would be taken for a mistake of the host's, and not be waited out."""
    error = OSError("the database is away")
    with pytest.raises(OSError, match="away") as raised:
        await contained_task(raising(error), name="test")
    assert raised.value is error


@virtual_time
async def test_a_task_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    """Python would warn of a coroutine that was never awaited, at each shutdown of a host."""
    work = raising(ValueError())
    task = contained_task(work, name="test")
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert task.cancelled()
    assert work.cr_frame is None
    del work
    gc.collect()


@virtual_time
async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    """It would pass for ours: work would be released as if by a shutdown, and begun again
    without an end.
    """
    with pytest.raises(HostCodeError, match="a cancellation escaped"):
        await as_host_code(lambda: raising(asyncio.CancelledError()))
    with pytest.raises(HostCodeError, match="SystemExit: 3"):
        await as_host_code(lambda: raising(SystemExit(3)))


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


@virtual_time
async def test_a_coroutine_whose_loop_is_gone_is_closed() -> None:
    """Python closes it by a ``GeneratorExit``; anything else out of it would be reported on
    stderr for each.
    """
    work = without_exits(asyncio.Event().wait)
    work.send(None)
    work.close()
