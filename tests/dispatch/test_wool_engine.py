"""Tests of the engine over wool, against real workers: what an attempt there promises, also when
its worker dies.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import aclosing
from contextvars import Context
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import wool

from rowlock import ConfigurationError
from rowlock.dispatch import (
    AttemptEvent,
    Completed,
    Engine,
    Failed,
    Heartbeat,
    NoWorkersAvailable,
    PriorityLoadBalancer,
    Progress,
    StageDone,
    Task,
    WorkerBusy,
    WorkerGone,
)
from rowlock.dispatch.engine import Events
from rowlock.dispatch.engines import wool as wool_line
from rowlock.dispatch.engines.wool import FORGOTTEN_S, WoolEngine
from rowlock.dispatch.engines.wool_worker import pickled, run_task
from rowlock.dispatch.placement import Placement
from rowlock.testing import virtual_time

from ..host import HANG_S_MAX
from . import handlers, wool_handlers
from .test_engines import falls_silent, goes_on_when_asked, heard, task_of, until
from .wool_farm import farm
from .wool_scene import heard_until_progress, offered, offering, opened

OF_THE_HOST: wool.ContextVar[Any] = wool.ContextVar("of_the_host")


@pytest.mark.parametrize("handler", [handlers.works, handlers.works_plainly])
async def test_events_come_in_order(namespace: str, handler: Callable[[Task[Any]], Any]) -> None:
    """What a handler says on another machine would be lost."""
    async with opened(namespace) as engine:
        assert isinstance(engine, Engine)
        async with offering(engine, handler, row="scene") as events:
            first, *rest = await heard(events)
        assert first == Heartbeat()
        assert rest[:2] == [Progress("begun"), StageDone("raw", {"file": "7"})]
        assert isinstance(rest[2], Completed)
        assert (rest[2].values["row"], rest[2].values["attempt"]) == ("scene", 2)
        assert rest[2].values["pid"] != os.getpid()
        assert len(rest) == 3
        assert [view.active for view in engine.workers().values()] == [0, 0]


@pytest.mark.parametrize(
    "handler", [wool_handlers.tells_its_place, wool_handlers.tells_its_place_plainly]
)
async def test_each_attempt_has_a_folder_there(
    namespace: str, handler: Callable[[Task[Any]], Any]
) -> None:
    """A handler would write into the dispatcher's folder, which its machine has not, or fill the
    disk with its own.
    """
    async with opened(namespace) as engine, offering(engine, handler) as events:
        *_, last = await heard(events)
        assert isinstance(last, Completed)
        assert not is_there(last.values["workdir"])


def is_there(folder: str) -> bool:
    """Whether there is such a folder; an attempt's is a path of its own."""
    assert Path(folder).is_absolute()
    return Path(folder).exists()


@pytest.mark.parametrize(
    "handler", [handlers.raises, handlers.raises_plainly, handlers.exits, handlers.exits_plainly]
)
async def test_what_a_handler_raises_is_a_failure(
    namespace: str, handler: Callable[[Task[Any]], Any]
) -> None:
    """A slip in a handler would look like a worker that died, and end that worker."""
    async with opened(namespace) as engine:
        async with offering(engine, handler) as events:
            *_, last = await heard(events)
        assert isinstance(last, Failed)
        assert (last.kind, last.text) in {
            ("internal", "ValueError: no such scene"),
            ("internal", "SystemExit: 3"),
        }
        # And it goes on.
        async with offering(engine, handlers.works) as events:
            assert isinstance((await heard(events))[-1], Completed)


@pytest.mark.parametrize("handler", [handlers.tells_a_stage, handlers.tells_a_stage_plainly])
async def test_a_handler_goes_on_when_its_stage_is_recorded(
    namespace: str, tmp_path: Path, handler: Callable[[Task[Any]], Any]
) -> None:
    """It would throw away what the stage was made of, and a replica that dies then would leave a
    row that nobody can do.
    """
    async with opened(namespace) as engine, offering(engine, handler, tmp_path) as events:
        await goes_on_when_asked(events, tmp_path)


async def test_one_that_ends_without_a_word_ends(namespace: str) -> None:
    """A handler that forgets its last event would hang until its time limit."""
    async with (
        opened(namespace) as engine,
        offering(engine, wool_handlers.ends_without_a_word) as events,
    ):
        assert await heard(events) == [Heartbeat(), Progress("begun")]


@pytest.mark.parametrize(
    "handler", [handlers.waits, handlers.waits_plainly], ids=["waits", "blocks"]
)
async def test_it_beats_while_the_handler_says_nothing(
    namespace: str, tmp_path: Path, handler: Callable[[Task[Any]], Any]
) -> None:
    """Long work would look like a death, above all work that blocks; and what nobody wants any more
    would run to its end on another machine.
    """
    async with opened(namespace) as engine:
        task = task_of(handler, tmp_path, heartbeat_s=0.05)
        async with aclosing(await engine.offer(min(engine.workers()), task)) as events:
            async with asyncio.timeout(HANG_S_MAX):
                first = [await anext(events) for _ in range(6)]
            assert not (tmp_path / "ended").exists()
            (tmp_path / "go on").touch()
        assert sum(event == Heartbeat() for event in first) >= 5
        await until((tmp_path / "ended").exists)


async def test_two_of_five_are_accepted(namespace: str, tmp_path: Path) -> None:
    """Work would pile up on a worker that has its hands full, or be refused by one that has
    room.
    """
    async with opened(namespace) as engine:
        placement = Placement(engine, PriorityLoadBalancer())
        task = task_of(handlers.waits, tmp_path)
        results = await asyncio.gather(
            *(placement.place(task) for _ in range(5)), return_exceptions=True
        )
        accepted = [result for result in results if isinstance(result, tuple)]
        refused = [result for result in results if isinstance(result, NoWorkersAvailable)]
        assert (len(accepted), len(refused)) == (2, 3)
        assert sorted(worker for worker, _ in accepted) == sorted(engine.workers())
        assert [view.active for view in engine.workers().values()] == [1, 1]
        for _, events in accepted:
            await events.aclose()
        assert [view.active for view in engine.workers().values()] == [0, 0]


async def test_nobody_else_is_asked(namespace: str, tmp_path: Path) -> None:
    """A task would run on another worker than the pipeline wrote down, and the balancer would
    balance nothing.
    """
    async with opened(namespace) as engine, offering(engine, handlers.waits, tmp_path):
        with pytest.raises(WorkerBusy):
            await offered(engine, handlers.works)
        assert engine.workers()[max(engine.workers())].active == 0


async def test_a_cancelled_attempt_leaves_no_folder(namespace: str) -> None:
    """Cancelled attempts would fill the disks of the workers."""
    async with opened(namespace) as engine:
        async with offering(engine, wool_handlers.tells_its_place) as events:
            folder = Path((await heard_until_progress(events)).text)
            assert (folder / "raw").exists()
        await until(lambda: not folder.exists())


async def test_after_a_cancellation_there_is_room_at_once(namespace: str, tmp_path: Path) -> None:
    """The row that takes the place of a cancelled one would be refused, and rest for its whole
    interval beside an idle worker.
    """
    async with opened(namespace) as engine:
        for _ in range(10):
            async with offering(engine, handlers.waits, tmp_path) as events:
                await heard_until_progress(events)
                # Closed while the next event is waited for, it takes longest.
                assert await falls_silent(events, silence_s=0.02)


async def test_after_the_last_event_there_is_room_at_once(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that is brought forward, by whichever replica, would be refused, and rest beside
    an idle worker.
    """
    # A worker process on a starved machine may need longer than is waited for anyway.
    monkeypatch.setattr(wool_line, "CLOSE_S_MAX", HANG_S_MAX)
    async with opened(namespace) as one, opened(namespace) as other:
        for engine in (one, other, one):
            async with offering(engine, wool_handlers.is_slow_to_end) as events:
                async with asyncio.timeout(HANG_S_MAX):
                    while not isinstance(await anext(events), Completed):
                        pass


async def test_an_attempt_that_was_never_listened_to_leaves_its_worker_free(
    namespace: str, tmp_path: Path
) -> None:
    """A dispatcher that is cancelled just after the offer would cost a worker for ever; and its
    handler must not have begun.
    """
    async with opened(namespace) as engine:
        events = await offered(engine, handlers.waits, tmp_path)
        await events.aclose()
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        async with offering(engine, handlers.works) as events:
            assert isinstance((await heard(events))[-1], Completed)
        assert not (tmp_path / "ended").exists()


async def test_what_cannot_be_sent_is_a_failure(namespace: str) -> None:
    """A row that cannot be pickled would look like a broken worker, and be tried again and
    again.
    """
    async with opened(namespace) as engine:
        for row, says in ((threading.Lock(), "cannot pickle"), (bytes(17 * 2**20), "too large")):
            async with offering(engine, handlers.works, row) as events:
                _, last = await heard(events)
            assert isinstance(last, Failed)
            assert "the task cannot be sent to a worker" in last.text
            assert says in last.text
        for handler, says in (
            (wool_handlers.gives_a_lock, "cannot pickle"),
            (wool_handlers.gives_too_much, "too large"),
        ):
            async with offering(engine, handler) as events:
                *_, last = await heard(events)
            assert isinstance(last, Failed)
            assert last.kind == "internal"
            assert says in last.text


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that no worker has, with `works` of its own."""
    module = ModuleType("rowlock_tests_only_here")
    module.works = FunctionType(handlers.works.__code__, vars(module), "works")  # type: ignore[attr-defined]
    module.works.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


async def test_a_worker_that_lacks_a_module(
    namespace: str, only_here: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that was not deployed would hang, and a worker without rowlock would end the
    pipeline's tasks.
    """
    async with opened(namespace) as engine:
        async with offering(engine, only_here.works) as events:
            _, last = await heard(events)
        assert last == Failed(
            "internal", "ModuleNotFoundError: No module named 'rowlock_tests_only_here'"
        )
        monkeypatch.setattr(wool_line, "run_task", only_here.works)
        with pytest.raises(WorkerGone, match="ModuleNotFoundError"):
            await offered(engine, handlers.works)


async def test_a_worker_without_a_folder_is_gone(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose disk is full would fail every row that it takes."""
    async with opened(namespace) as engine:
        monkeypatch.setattr(wool_line, "run_task", wool_handlers.has_no_folder)
        with pytest.raises(WorkerGone, match="FileNotFoundError"):
            await offered(engine, handlers.works)
    async with aclosing(run_task(pickled(task_of(handlers.works)), 10.0)) as said:
        assert pickle.loads(await anext(said)) == Heartbeat()
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    async with aclosing(run_task(pickled(task_of(handlers.works)), 10.0)) as said:
        with pytest.raises(FileNotFoundError):
            await anext(said)


async def test_it_works_from_any_context(namespace: str) -> None:
    """wool ties its state to the task that opened its pool: attempts of others would find no
    pool, or fight for its chain.
    """

    async def attempt(engine: WoolEngine, worker: str) -> AttemptEvent:
        """Read each event in a task of its own."""
        events = await engine.offer(worker, task_of(handlers.works))
        last: AttemptEvent = Heartbeat()
        async with asyncio.timeout(HANG_S_MAX):
            while not isinstance(last, Completed | Failed):
                last = await asyncio.create_task(_next(events))
        await asyncio.create_task(events.aclose())
        return last

    async with opened(namespace) as engine:
        first, second = sorted(engine.workers())
        stranger = asyncio.Event()

        async def before() -> AttemptEvent:
            await stranger.wait()
            return await attempt(engine, first)

        early = asyncio.create_task(before(), context=Context())
        # The host's own, for its own work, and something that it would never send.
        async with wool.WorkerPool(discovery=wool.LocalDiscovery(namespace)):
            OF_THE_HOST.set(threading.Lock())
            stranger.set()
            both = await asyncio.gather(early, attempt(engine, second))
    assert [type(last) for last in both] == [Completed, Completed]


async def _next(events: Events) -> AttemptEvent:
    return await anext(events)


async def test_one_that_is_not_open_has_nobody() -> None:
    """A pipeline that starts before the engine would crash instead of waiting."""
    engine = WoolEngine(wool.LocalDiscovery("rowlock-nowhere"))
    assert engine.workers() == {}
    with pytest.raises(WorkerGone, match="not open"):
        await engine.offer(str(uuid.uuid4()), task_of(handlers.works))


async def test_there_is_no_such_worker(namespace: str) -> None:
    """A balancer that remembers a worker for too long would stop everything."""
    async with opened(namespace) as engine:
        with pytest.raises(WorkerGone, match="left"):
            await engine.offer(str(uuid.uuid4()), task_of(handlers.works))


async def test_it_is_open_once_at_a_time(namespace: str) -> None:
    """The one who leaves first would close it for the other, and nobody the first client."""
    async with opened(namespace) as engine:
        with pytest.raises(ConfigurationError, match="once at a time"):
            await engine.__aenter__()
        assert len(engine.workers()) == 2
    assert engine.workers() == {}


@virtual_time
async def test_one_that_was_never_opened_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every row would rest for ever, and nothing would say that a line of the host's is missing;
    or each start would cry wolf.
    """
    engine, warning = (
        WoolEngine(wool.LocalDiscovery("nobody")),
        "is not open; enter it with `async with`",
    )
    assert engine.workers() == {}
    await asyncio.sleep(FORGOTTEN_S)
    assert engine.workers() == {}
    assert warning not in caplog.text
    await asyncio.sleep(1)
    assert [engine.workers(), engine.workers()] == [{}, {}]
    assert caplog.text.count(warning) == 1


# Now and then its loop ends without what it does at the end of a task, and the stream stays open
# for as long as the worker has to end. A pipeline hears no beats and gives the worker up.
UNTOLD = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="wool may not tell of a stopped worker if nobody waits for its next event",
)


async def test_a_worker_that_is_killed_is_noticed(tmp_path: Path) -> None:
    """An attempt whose worker is gone would hang until its time limit."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1) as [victim]:
        async with opened(name, workers=1) as engine:
            async with offering(engine, handlers.waits, tmp_path) as events:
                await heard_until_progress(events)
                os.kill(victim, signal.SIGKILL)
                with pytest.raises(WorkerGone, match="connection broke"):
                    await heard(events)
            with pytest.raises(WorkerGone):
                await offered(engine, handlers.works)


async def test_a_worker_that_stands_still_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen machine would hold whoever offers it something, and be taken for one that works."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1, threshold=2) as [frozen]:
        async with opened(name, workers=1) as engine:
            task = task_of(handlers.waits, tmp_path, heartbeat_s=0.05)
            async with aclosing(await engine.offer(min(engine.workers()), task)) as events:
                await heard_until_progress(events)
                monkeypatch.setattr(wool_line, "OFFER_S_MAX", 1.0)
                os.kill(frozen, signal.SIGSTOP)
                try:
                    assert await falls_silent(events, silence_s=1.0)
                    with pytest.raises(WorkerGone, match="DEADLINE"):
                        async with asyncio.timeout(HANG_S_MAX):
                            await offered(engine, handlers.works)
                finally:
                    os.kill(frozen, signal.SIGCONT)


@pytest.mark.parametrize("waited_for", [True, pytest.param(False, marks=UNTOLD)])
async def test_a_worker_that_is_stopped_is_gone(tmp_path: Path, waited_for: bool) -> None:
    """The end of a worker would look like a cancellation, which ends the pipeline's own task."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1) as [leaving]:
        async with (
            opened(name, workers=1) as engine,
            offering(engine, handlers.waits, tmp_path) as events,
        ):
            await heard_until_progress(events)
            rest = asyncio.create_task(heard(events))
            if waited_for:
                await until((tmp_path / "gone on").exists)
            os.kill(leaving, signal.SIGTERM)
            with pytest.raises(WorkerGone):
                await rest


async def test_workers_that_come_later_are_seen_and_those_that_leave_are_not(
    namespace: str,
) -> None:
    """A fleet could not grow while the service runs, or shrink."""
    async with opened(namespace) as engine:
        with farm(namespace, workers=1) as [late]:
            await until(lambda: len(engine.workers()) == 3)
            found = set()
            for worker in engine.workers():
                async with aclosing(await engine.offer(worker, task_of(handlers.works))) as events:
                    *_, last = await heard(events)
                    assert isinstance(last, Completed)
                    found.add(last.values["pid"])
            assert late in found
        await until(lambda: len(engine.workers()) == 2)


async def test_a_discovery_that_fails_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """After one error, or when it was opened too early, an engine would never again see a worker
    come.
    """
    monkeypatch.setattr("rowlock.dispatch.engines.wool.DISCOVER_AGAIN_S", 0.01)

    class Shaky:
        asked = 0

        @property
        def subscriber(self) -> Any:
            Shaky.asked += 1
            if Shaky.asked < 3:
                raise FileNotFoundError("not yet")
            return wool.LocalDiscovery(namespace).subscriber

    async with WoolEngine(Shaky()) as engine:
        await until(lambda: len(engine.workers()) == 2)
    assert Shaky.asked == 3
