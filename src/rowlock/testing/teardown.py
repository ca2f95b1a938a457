"""What the fixtures of the plugin opened is closed in the loop of the test, and tasks that are
still alive fail it.

The one idea: one fixture is async, and there is one of it for each that may run the test:
pytest-asyncio, in either mode and with a loop of any scope, anyio, or none. `rowlock_opened` picks
the right one; all others push what they open on its stack.

Not here: what is opened (`plugin`, which loads this one).
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from rowlock.testing.run_in_thread import run_in_thread
from rowlock.testing.virtual_time import TasksLeftBehindError

try:
    import pytest_asyncio
except ImportError:  # anyio's plugin may run the tests as well
    pytest_asyncio = None  # type: ignore[assignment, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_ANYIO_OWN: Final = frozenset({"TestRunner._call_in_runner_task", "_shutdown_process_pool_on_exit"})
"""Tasks of anyio: a new one for each test that it runs, and one that ends worker processes."""
_WORKER: Final = "_connection_worker_thread"
"""Part of the names of aiosqlite's threads: their function."""
THREADS_END_WITHIN_S: Final = 10.0
"""Longest wait for those threads; that of an open connection does not end."""
_LOOK_EVERY_S: Final = 0.001
_LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")


def _opened_in_loop() -> Callable[[], AsyncIterator[AsyncExitStack]]:
    """Return a new function each time: pytest-asyncio notes on it which loop it is for."""

    async def opened() -> AsyncIterator[AsyncExitStack]:
        """Close what the fixtures opened, in the loop of the test; then look for tasks left."""
        before, threads = asyncio.all_tasks(), set(threading.enumerate())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_driver_threads_end, threads)
            stack.callback(_check_tasks, before)
            yield stack

    return opened


async def _driver_threads_end(before: set[threading.Thread]) -> None:
    # One whose connection failed, or was cancelled while it was made, reports so by way of the
    # loop, and would fail another test if that is closed.
    begun = [one for one in threading.enumerate() if one not in before and _WORKER in one.name]
    with suppress(TimeoutError):
        async with asyncio.timeout(THREADS_END_WITHIN_S):
            while any(one.is_alive() for one in begun):  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(_LOOK_EVERY_S)


def _check_tasks(before: set[asyncio.Task[Any]]) -> None:
    alive = asyncio.all_tasks() - before - {asyncio.current_task()}
    left = {
        task for task in alive if getattr(task.get_coro(), "__qualname__", "") not in _ANYIO_OWN
    }
    if left:
        msg = f"cancel and await what you start; still alive after the test: {left}"
        raise TasksLeftBehindError(msg)


_rowlock_opened_under_anyio = pytest.fixture(_opened_in_loop())
if pytest_asyncio is not None:
    for _scope in _LOOP_SCOPES:
        globals()[f"_rowlock_opened_in_{_scope}"] = pytest_asyncio.fixture(loop_scope=_scope)(
            _opened_in_loop()
        )


@pytest.fixture
def _rowlock_opened_alone() -> Iterator[AsyncExitStack]:
    """Close what the fixtures opened, where no plugin runs async tests."""
    stack = AsyncExitStack()
    yield stack
    run_in_thread(stack.aclose)


@pytest.fixture
def rowlock_opened(request: pytest.FixtureRequest) -> AsyncExitStack:
    """The stack of what is closed after the test, in the loop that runs it."""
    stack: AsyncExitStack = request.getfixturevalue(_runner_of(request))
    return stack


def _runner_of(request: pytest.FixtureRequest) -> str:
    if "anyio_backend" in request.fixturenames:
        if request.getfixturevalue("anyio_backend_name") != "asyncio":
            pytest.fail(
                "rowlock runs on asyncio: have your fixture `anyio_backend` return 'asyncio'",
                pytrace=False,
            )
        return "_rowlock_opened_under_anyio"
    plugins = request.config.pluginmanager
    if pytest_asyncio is None or not any(map(plugins.hasplugin, ("asyncio", "pytest_asyncio"))):
        return "_rowlock_opened_alone"
    marker = request.node.get_closest_marker("asyncio")
    asked = marker.kwargs.get("loop_scope") or marker.kwargs.get("scope") if marker else None
    return f"_rowlock_opened_in_{asked or request.config.getini('asyncio_default_test_loop_scope')}"


@pytest.fixture
def rowlock_tidy(rowlock_opened: AsyncExitStack) -> None:
    """Fail the test if it leaves tasks alive."""
