"""Tests of attempts that are ended: before they begin, by their worker, in a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from rowlock.database.faults import is_transient
from rowlock.errors import HostCodeError
from rowlock.pipelines.attempt import Attempt, Ended, Result, contained, host_call
from rowlock.tasks import DaemonThreads
from rowlock.testing import virtual_time

from ..host import HANG_S_MAX
from .scenes import hang, turns
from .test_attempt import THREADS, attempt_of


@virtual_time
async def test_an_attempt_ended_before_it_began_calls_nothing() -> None:
    """Work would begin on a row whose lease is already lost."""
    called: list[int] = []

    async def process() -> None:
        called.append(1)

    attempt = attempt_of(process)
    attempt.end(Ended.LEASE_LOST)
    assert await attempt.run() is Ended.LEASE_LOST
    assert called == []
    assert not attempt.is_running


@virtual_time
async def test_an_attempt_that_is_ended_before_its_first_step() -> None:
    """The worker would wait for the whole grace for a call that never began."""
    called: list[int] = []

    async def process() -> None:
        called.append(1)

    attempt, began_at = attempt_of(process), asyncio.get_running_loop().time()
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(0)
    attempt.end(Ended.INTERRUPTED)
    assert await running is Ended.INTERRUPTED
    assert called == []
    assert asyncio.get_running_loop().time() == began_at


@virtual_time
async def test_a_late_end_by_our_cancellation_is_no_error_of_the_host() -> None:
    """After an abandoned call that ends by the cancellation that it was given, the log does not
    blame the host.
    """
    go_on = asyncio.Event()

    async def process() -> None:
        try:
            await hang()
        finally:
            await go_on.wait()

    late: list[Result] = []
    attempt = attempt_of(process, grace_s=1)
    running = asyncio.create_task(attempt.run())
    await turns()
    attempt.end(Ended.INTERRUPTED)
    assert await running is Ended.ABANDONED
    attempt.on_late_result(late.append)
    go_on.set()
    await turns()
    assert late == [Ended.ABANDONED]


REFUSED = IntegrityError("INSERT", {}, Exception("there is one already"))


async def raise_(error: BaseException) -> None:
    raise error


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


async def test_what_the_database_said_to_the_host_comes_out_as_it_is() -> None:
    """A constraint that the host's own statement broke would not be known for what it is."""
    with pytest.raises(IntegrityError) as caught:
        await contained(raise_, REFUSED)
    assert caught.value is REFUSED


async def test_a_coroutine_out_of_a_thread_that_was_ended_is_not_begun() -> None:
    """It would never hear of the cancellation, and work on without a lease."""
    go_on, started, begun = threading.Event(), threading.Event(), list[str]()

    async def inner() -> None:
        begun.append("without a lease")

    def process() -> Any:
        started.set()
        go_on.wait(HANG_S_MAX)
        return inner()

    call = host_call(process, threads=THREADS)
    attempt = Attempt(call, timeout_s=100, grace_s=30)
    running = asyncio.create_task(attempt.run())
    await asyncio.to_thread(started.wait, HANG_S_MAX)
    attempt.end(Ended.LEASE_LOST)
    await turns()
    go_on.set()
    assert await running is Ended.LEASE_LOST
    assert begun == []


def test_a_process_that_hangs_keeps_no_event_loop_from_ending() -> None:
    """A plain `process` that hangs is left behind in its thread when its event loop ends."""
    go_on, started, ends = threading.Event(), threading.Event(), list[Any]()

    def process() -> None:
        started.set()
        go_on.wait(HANG_S_MAX)

    async def main() -> None:
        call = host_call(process, threads=DaemonThreads(1, name="rowlock test"))
        attempt = Attempt(call, timeout_s=100, grace_s=30)
        ends.append(asyncio.create_task(attempt.run_here(lambda: ends.append("left behind"))))
        await asyncio.to_thread(started.wait, HANG_S_MAX)

    host = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    host.start()
    host.join(HANG_S_MAX / 2)
    assert (host.is_alive(), ends[1:]) == (False, ["left behind"])
    go_on.set()


def test_a_call_that_hangs_keeps_no_interpreter_from_ending() -> None:
    """Code of the host runs on daemon threads: Python does not wait for a call that hangs."""
    program = (
        "import threading; from rowlock.tasks import DaemonThreads;"
        "DaemonThreads(1, name='x').submit(threading.Event().wait)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S_MAX)


async def test_what_host_code_raises_is_the_cause() -> None:
    """The traceback of a host's own error would be nowhere."""
    error = LookupError("no such disk")
    with pytest.raises(HostCodeError) as caught:
        await contained(raise_, error)
    assert caught.value.__cause__ is error
