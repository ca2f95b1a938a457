"""Event loops of tests: one on which time is moved, never waited for; and one in a thread of its
own, for async work that is done at once, wherever the caller is.

The one idea: when no callback is ready the loop jumps to its next timer. Hours pass in
milliseconds, and the order of events depends on the program alone. A program that can do nothing
any more, or that never comes to rest, is an error with a list of the tasks concerned, not a hang.

Not here: the database (`inline_sqlite` runs statements in the loop), the database's clock
(``database_clock.py``), and the choice among callbacks that are ready at the same time (first
come, first served). Real sockets are not supported: the loop would jump over the wait for them.
`asyncio.to_thread` is: virtual time stands still while a thread runs.

Source: the selector seam of `asyncio.BaseEventLoop._run_once`; the idea of jumping clocks is known
from trio's `MockClock` and from looptime.
"""

from __future__ import annotations

import asyncio
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Executor


START_S: Final = 1000.0
"""`loop.time()` of a new loop. Not zero, so that code which takes 0 for "never" is found out.
**Unit** seconds.
"""

MAX_VIRTUAL_S: Final = 24 * 3600.0  # how far one run may move the time

MAX_ITERATIONS: Final = 1_000_000  # how many turns of the loop one run may take

THREAD_WAIT_S_MAX: Final = 30.0  # how long a run really waits for a thread that it started

_TASKS_SHOWN_MAX: Final = 20

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class VirtualTimeError(RuntimeError):
    """A program cannot be run to its end on virtual time."""


class NothingCanHappenError(VirtualTimeError):
    """No callback is ready, no timer is set and no thread is running: every task waits for ever."""


class LivelockError(VirtualTimeError):
    """A run used up its virtual seconds or its turns of the loop without coming to its end."""


class TasksLeftBehindError(AssertionError):
    """A run came to its end while tasks that it had started were still alive."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls a real selector; asks the loop to move its time where a real one would wait."""

    on_idle: Callable[[float | None], float] = staticmethod(lambda _timeout: 0.0)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Polled before each wait: the loop's self-pipe is how `call_soon_threadsafe` wakes it. A
        # loop that has callbacks to run need not be woken.
        events = [] if timeout == 0 else super().select(0)
        real_wait_s = 0.0 if events else self.on_idle(timeout)
        return super().select(real_wait_s) if real_wait_s else events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at `START_S` and jumps from timer to timer.

    Attributes:
        max_virtual_s: How far one run may move the time. **Unit** seconds.
        max_iterations: How many turns one run may take.
        is_virtual: Says that its time is not the true one, so that nothing of what runs in it is
            put into a thread.

    Raises:
        NothingCanHappenError: From the running call, when every task waits for ever.
        LivelockError: From the running call, when one of the two limits is passed.
    """

    _scheduled: list[asyncio.TimerHandle]
    is_virtual: Final = True

    def __init__(
        self, *, max_virtual_s: float = MAX_VIRTUAL_S, max_iterations: int = MAX_ITERATIONS
    ) -> None:
        """Set the limits; raises ValueError if one is not positive."""
        self.max_virtual_s = max_virtual_s
        self.max_iterations = max_iterations
        self._now = START_S
        self._iterations = 0
        self._end = START_S + max_virtual_s
        self._threads = 0
        selector = _JumpingSelector()
        super().__init__(selector)
        if max_virtual_s <= 0 or max_iterations <= 0:
            self.close()
            raise ValueError(
                f"limits must be positive, not max_virtual_s={max_virtual_s} and"
                f" max_iterations={max_iterations}"
            )
        selector.on_idle = self._before_select
        self._set_now(START_S)

    def time(self) -> float:
        """Return the virtual time. **Unit** seconds."""
        return self._now

    def run_forever(self) -> None:
        """Run until stopped; both limits count from here."""
        self._iterations = 0
        self._end = self._now + self.max_virtual_s
        super().run_forever()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        """Run `func` in a real thread; virtual time stands still until it is back."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_is_back)
        return future

    async def shutdown_default_executor(self, *args: object, **kwargs: object) -> None:
        """Wait, in real time, for the threads of the default executor."""
        self._threads += 1  # asyncio waits for them in one more thread, past `run_in_executor`
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._threads -= 1

    def _thread_is_back(self, _future: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def _set_now(self, now: float) -> None:
        self._now = now
        # asyncio fires timers up to one clock resolution early. Here a timer fires at its own time,
        # to the last digit: code that then compares times must not find that its deadline is still
        # ahead.
        self._clock_resolution = math.ulp(now)

    def _before_select(self, timeout: float | None) -> float:
        """Move the time if nothing else can happen; return for how long to wait in real time."""
        self._iterations += 1
        if self._iterations > self.max_iterations:
            raise self._livelock(
                f"{self.max_iterations:,} turns of the loop at virtual time {self._now}"
            )
        if timeout == 0:
            return 0.0
        if self._threads:
            return THREAD_WAIT_S_MAX
        if timeout is None:
            raise NothingCanHappenError(
                f"nothing can happen any more at virtual time {self._now}: no callback is ready, no"
                " timer is set. Something must set the event that these tasks wait for (sockets,"
                " and threads other than asyncio.to_thread, cannot on virtual time):"
                f" {_describe(asyncio.all_tasks(self))}"
            )
        # Not `now + timeout`: a sum of floats may fall short of the timer, and `timeout` is capped
        # by asyncio.
        then = self._scheduled[0].when()
        if then > self._end:
            raise self._livelock(f"{self.max_virtual_s:g} virtual seconds")
        self._set_now(max(self._now, then))
        return 0.0

    def _livelock(self, what: str) -> LivelockError:
        return LivelockError(
            f"no end after {what}: something goes round for ever, or the limit is too low. "
            f"Tasks: {_describe(asyncio.all_tasks(self))}"
        )


def virtual_time_now() -> float:
    """Return the time of the running loop, or `START_S` outside of one. **Unit** seconds.

    Meant as the `source` of a `DatabaseClock` that is made before the loop is.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return START_S


def run_virtual(
    async_function: Callable[[], Coroutine[Any, Any, R]],
    *,
    max_virtual_s: float = MAX_VIRTUAL_S,
    max_iterations: int = MAX_ITERATIONS,
) -> R:
    """Run an async function without parameters on a new virtual-time loop and return its result.

    Args:
        async_function: What to run; use a lambda to hand over arguments.
        max_virtual_s: How far the run may move the time. **Unit** seconds.
        max_iterations: How many turns of the loop the run may take.

    Raises:
        NothingCanHappenError: Every task waits for ever.
        LivelockError: A limit was passed.
        TasksLeftBehindError: The function returned while tasks that it had started were alive.
    """
    make_loop = functools.partial(
        VirtualTimeLoop, max_virtual_s=max_virtual_s, max_iterations=max_iterations
    )
    with asyncio.Runner(loop_factory=make_loop) as runner:
        result = runner.run(async_function())
        if left := asyncio.all_tasks(runner.get_loop()):
            raise TasksLeftBehindError(
                f"cancel and await what you start; still alive at the end: {_describe(left)}"
            )
    return result


@overload
def virtual_time(test: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, R]: ...


@overload
def virtual_time(
    *, max_virtual_s: float = ..., max_iterations: int = ...
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, R]]: ...


def virtual_time(
    test: Callable[P, Coroutine[Any, Any, R]] | None = None,
    /,
    *,
    max_virtual_s: float = MAX_VIRTUAL_S,
    max_iterations: int = MAX_ITERATIONS,
) -> Any:
    """Make an `async def` test a plain one that runs on a virtual-time loop; its fixtures stay as
    they are.

    Such a test must not use *async* fixtures: they would live on another loop.

    Example:
        ```python
        @virtual_time
        async def test_a_minute_passes_at_once():
            await asyncio.sleep(60)
        ```
    """
    if test is None:
        return functools.partial(
            virtual_time, max_virtual_s=max_virtual_s, max_iterations=max_iterations
        )

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_virtual(
            lambda: test(*args, **kwargs),
            max_virtual_s=max_virtual_s,
            max_iterations=max_iterations,
        )

    return run


def _describe(tasks: Iterable[asyncio.Task[Any]]) -> str:
    lines = sorted(f"{task.get_name()} at {_place(task)}" for task in tasks)
    more = [f"and {len(lines) - _TASKS_SHOWN_MAX} more"] if len(lines) > _TASKS_SHOWN_MAX else []
    return "; ".join(lines[:_TASKS_SHOWN_MAX] + more) or "no task"


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    coroutine = getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))
    return f"{coroutine}, line {frames[0].f_lineno}" if frames else coroutine


def run_in_thread(async_function: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run an async function to its end in a new loop; the calling thread waits."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rowlock-test") as thread:
        return thread.submit(lambda: asyncio.run(async_function())).result()


class LoopInThread:
    """A loop in a thread of its own, for what outlives a test; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: unless closed, it would keep the process from ending.
        self._thread = Thread(target=self._loop.run_forever, name="rowlock-test", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, async_function: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run an async function to its end and return its result; the calling thread waits."""
        return asyncio.run_coroutine_threadsafe(async_function(), self._loop).result()
