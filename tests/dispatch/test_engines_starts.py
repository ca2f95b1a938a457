"""Tests of how worker processes start: what their machine may lack, and what becomes of a start
that hangs or is given up.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from types import ModuleType

import pytest

from rowlock.dispatch import (
    Completed,
    LoopEngine,
    ProcessEngine,
)
from rowlock.dispatch.engines import process as process_line
from rowlock.dispatch.engines.local import LocalEngine

from ..host import HANG_S_MAX
from . import handlers
from .test_engines import heard, offered, task_of, until

STEPS = 5
"""As many steps of the loop an offer takes at most until all it does is wait for its process."""


async def test_a_machine_that_lacks_something_fails_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica without memory for one more process would fail every row that it takes."""
    engine = ProcessEngine(1)
    with monkeypatch.context() as sick:
        sick.setattr("asyncio.create_subprocess_exec", no_process)
        with pytest.raises(BlockingIOError):
            await engine.offer("process-1", task_of(handlers.works))
    async with offered(engine, task_of(handlers.works)) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def no_process(*_: object, **__: object) -> None:
    """Say what Linux says to a fork too many."""
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder; processes import a main module that writes ``pid`` there and waits for ``go
    on``.
    """
    script = tmp_path / "host.py"
    script.write_text(
        "import os, pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'new').write_text(str(os.getpid()))\n"
        "(here / 'new').rename(here / 'pid')\n"
        "while not (here / 'go on').exists():\n"
        "    time.sleep(0.02)\n"
    )
    module = ModuleType("__main__")
    module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return tmp_path


async def test_a_process_that_starts_slowly_is_waited_for(main: Path) -> None:
    """A host that imports for a minute would lose each attempt before its work began."""
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    await until((main / "pid").exists)
    assert not offer.done()
    assert engine.workers()["process-1"].active == 1
    (main / "go on").touch()
    async with aclosing(await offer) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def test_a_process_that_never_starts_is_killed(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A main module that hangs would hold its worker, its row and the end of the service for
    ever.
    """
    monkeypatch.setattr(process_line, "START_S_MAX", 5.0)
    engine = ProcessEngine(1)
    async with asyncio.timeout(HANG_S_MAX):
        with pytest.raises(ChildProcessError, match="not up within 5 s"):
            await engine.offer("process-1", task_of(handlers.works))
    assert engine.workers()["process-1"].active == 0
    assert is_gone(main)


async def test_to_insist_on_an_end_does_not_leave_a_process(main: Path) -> None:
    """A drain that cancels twice would leave a process behind that is about to begin."""
    attempt = ProcessEngine(1).run("process-1", task_of(handlers.works))
    start = asyncio.create_task(anext(attempt))
    await until((main / "pid").exists)
    for _ in range(3):
        start.cancel()
        await asyncio.wait({start}, timeout=0.01)
    await asyncio.wait({start})
    assert start.cancelled()
    assert is_gone(main)


async def test_an_offer_that_is_given_up_lets_go_at_once(main: Path) -> None:
    """A drain would leave a row leased over whose process it had to wait, though nothing was
    begun.
    """
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    await until((main / "pid").exists)
    offer.cancel()
    for _ in range(STEPS):
        await asyncio.sleep(0)
    assert offer.cancelled()
    # And nobody starts one beside it, or forgets it.
    assert engine.workers()["process-1"].active == 1
    await until(lambda: engine.workers()["process-1"].active == 0)
    assert is_gone(main)


async def test_a_slow_start_is_told_once(
    main: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A main module without its guard runs the whole service in each process, and nobody would
    know why all rows wait.
    """
    monkeypatch.setattr(process_line, "SLOW_START_S", 0.01)
    offer = asyncio.create_task(ProcessEngine(1).offer("process-1", task_of(handlers.works)))
    with caplog.at_level(logging.WARNING):
        await until((main / "pid").exists)
        (main / "go on").touch()
        async with aclosing(await offer) as events:
            assert isinstance((await heard(events))[-1], Completed)
    assert [record.message for record in caplog.records if "slow to start" in record.message] == [
        "A worker process is slow to start. It imports the host's main module, which must start"
        " nothing but under `if __name__ == '__main__'`"
    ]


def is_gone(main: Path) -> bool:
    """Whether the process that imported that main module has ended."""
    try:
        os.kill(int((main / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def test_an_offer_that_is_given_up_at_any_step_leaves_nothing(tmp_path: Path) -> None:
    """Each drain would leave processes behind, until the machine has no more of them."""
    before = set(children())
    engine = ProcessEngine(STEPS)
    offers = []
    for steps, worker in enumerate(engine.workers()):
        offers.append(
            asyncio.create_task(
                engine.offer(worker, task_of(handlers.tells_its_beginning, tmp_path))
            )
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        offers[-1].cancel()
    async with asyncio.timeout(HANG_S_MAX):
        await asyncio.gather(*offers, return_exceptions=True)
    assert all(offer.cancelled() for offer in offers)
    await until(lambda: not any(view.active for view in engine.workers().values()))
    assert not (tmp_path / "begun").exists()
    await until(lambda: set(children()) <= before)


def children() -> list[int]:
    """Return the processes that this one has started and that live."""
    listed = subprocess.run(
        ["/bin/ps", "-A", "-o", "ppid=,pid=,args="], check=True, capture_output=True, text=True
    )
    lines = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    return [
        int(pid)
        for parent, pid, command in lines
        if int(parent) == os.getpid() and "engines.child" in command
    ]


@pytest.mark.parametrize("kind", [LoopEngine, ProcessEngine], ids=lambda kind: kind.kind)
def test_a_loop_that_ends_takes_its_attempts_along(kind: type[LocalEngine], tmp_path: Path) -> None:
    """An engine of a module, with a loop for each test, would be busy for ever after the first
    that ends in between.
    """
    engine = kind(1)
    [worker] = engine.workers()
    task = task_of(handlers.waits, tmp_path)
    held = []

    async def begin() -> None:
        held.append(await engine.offer(worker, task))

    async def do() -> None:
        assert engine.workers()[worker].active == 0
        async with offered(engine, task_of(handlers.works)) as events:
            # What is left of the old one changes nothing.
            held.clear()
            gc.collect()
            assert engine.workers()[worker].active == 1
            assert isinstance((await heard(events))[-1], Completed)

    asyncio.run(begin())
    asyncio.run(do())
