"""`GraphRuntime`: the threads that all runs share; how many there are, and how they sleep and end.

A thread is begun when a call waits and none sleeps, up to a bound, and ends when it has slept for
a while. One that waits for something else (a nested run, a read that blocks) is replaced meanwhile;
one whose call ignores the end of its run is replaced for good.

No wake-up is lost: a call is put into a deque before the lock is acquired to wake a sleeper, and a
thread looks into all deques under that lock before it counts as one.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rowlock.clock import stopwatch
from rowlock.graph.building.arguments import bounded
from rowlock.graph.lanes.threads import GraphThread, ThreadCall

THREADS_MAX: Final = 64
"""How many threads a runtime has by default."""

THREADS_BOUND: Final = 1000
"""How many threads a runtime may be given."""

IDLE_S_MAX: Final = 60.0
"""How long a thread sleeps before it ends, in seconds."""

EXIT_S_MAX: Final = 1.0
"""How long the end of the program waits for threads, in seconds."""


class GraphRuntime:
    """Threads for the calls of any number of runs.

    They are begun when they are needed, and are daemons. One runtime is enough for a program:
    `default_runtime`.

    Attributes:
        threads_max: how many threads work at the same time at most. Those that wait for a nested
            run or for a value of a source, or whose call was abandoned, do not count; of these last
            there are as many at most.
        steals: how many calls were made by another thread than the one they waited for.
    """

    def __init__(self, *, threads_max: int = THREADS_MAX) -> None:
        """Begin no thread yet.

        Raises:
            GraphError: `threads_max` is out of bounds.
        """
        self.threads_max = bounded("threads_max", threads_max, high=THREADS_BOUND)
        self.steals = 0
        self._is_closed = False
        self._number = 0
        self.forget()
        _runtimes.add(self)

    def forget(self) -> None:
        """Have no threads any more: in a child process there are none."""
        self._lock = threading.Lock()
        self._shared: deque[ThreadCall] = deque()
        self._workers: tuple[GraphThread, ...] = ()
        self._sleepers: list[GraphThread] = []
        self._blocked = 0
        self._abandoned = 0

    @property
    def threads(self) -> int:
        """How many threads there are now, without those whose call was abandoned."""
        return len(self._workers)

    @property
    def abandoned(self) -> int:
        """How many threads run calls that were abandoned."""
        return self._abandoned

    def submit(self, calls: list[ThreadCall]) -> None:
        """Make `calls` soon, the oldest first."""
        self._shared.extend(calls)
        self.wake(len(calls))

    def wake(self, count: int) -> None:
        """Wake a thread for each of `count` calls that wait, or begin one."""
        with self._lock:
            for _ in range(count):
                if self._sleepers:
                    self._sleepers.pop().awake.release()
                elif len(self._workers) - self._blocked < self.threads_max:
                    self._begin()
                else:
                    break

    def find(self, worker: GraphThread) -> ThreadCall | None:
        """Return the oldest call that waits for any thread, or for another one."""
        try:
            return self._shared.popleft()
        except IndexError:
            pass
        for other in self._workers:
            if other is not worker:
                try:
                    call = other.calls.popleft()
                except IndexError:
                    continue
                self.steals += 1
                return call
        return None

    def rest(self, worker: GraphThread) -> ThreadCall | None:
        """Wait for a call and return it; None if the thread is to end."""
        while True:
            with self._lock:
                call = self.find(worker)
                if call is not None:
                    return call
                if self._is_closed or self._is_surplus(worker):
                    self._remove(worker)
                    return None
                self._sleepers.append(worker)
            if not worker.awake.acquire(timeout=IDLE_S_MAX):
                with self._lock:
                    if worker in self._sleepers:
                        self._sleepers.remove(worker)
                        self._remove(worker)
                        return None
                worker.awake.acquire()  # it was woken while it gave up waiting

    def leave_to_others(self, worker: GraphThread) -> None:
        """Put what waits for `worker` at the end of what waits for any thread."""
        while True:
            try:
                self._shared.append(worker.calls.popleft())
            except IndexError:
                return

    def is_surplus(self, worker: GraphThread) -> bool:
        """Return whether `worker` is to end now, and forget it then."""
        if not self._is_surplus(worker):
            return False
        with self._lock:
            if not self._is_surplus(worker):
                return False
            self.leave_to_others(worker)
            # With what it has left there before, when it had served one run for long enough.
            waiting = len(self._shared)
            self._remove(worker)
        self.wake(waiting)
        return True

    @contextmanager
    def waits(self, worker: GraphThread) -> Iterator[None]:
        """Have `worker`, which this thread is, replaced in the block."""
        self.leave_to_others(worker)
        with self._lock:
            worker.blocks += 1
            self._blocked += worker.blocks == 1
        self.wake(len(self._shared))
        try:
            yield
        finally:
            with self._lock:
                worker.blocks -= 1
                self._blocked -= worker.blocks == 0 and not worker.is_abandoned

    def abandon(self, worker: GraphThread) -> None:
        """Replace `worker`, whose call is not waited for; it ends when that returns.

        As many threads as may work can be replaced so; a further one keeps its place.
        """
        with self._lock:
            if worker.is_abandoned or self._abandoned >= self.threads_max:
                return
            worker.is_abandoned = True
            self._abandoned += 1
            self._blocked -= worker.blocks > 0
            self._workers = tuple(one for one in self._workers if one is not worker)
        self.leave_to_others(worker)
        # With what no thread had a hand free for: each of them may hang like this one.
        self.wake(len(self._shared))

    def close(self) -> None:
        """End all threads that sleep, and the others after their call; wait a moment for them."""
        with self._lock:
            self._is_closed = True
            workers = self._workers
            while self._sleepers:
                self._sleepers.pop().awake.release()
        seconds = stopwatch()
        until = seconds() + EXIT_S_MAX
        for worker in workers:
            worker.join(max(0.0, until - seconds()))

    def _begin(self) -> None:
        self._number += 1
        worker = GraphThread(self, number=self._number)
        self._workers = (*self._workers, worker)
        try:
            worker.start()
        except RuntimeError:
            self._remove(worker)
            if not self._workers:  # otherwise the call waits for one of them
                raise

    def _is_surplus(self, worker: GraphThread) -> bool:
        return worker.is_abandoned or len(self._workers) - self._blocked > self.threads_max

    def _remove(self, worker: GraphThread) -> None:
        if worker.is_abandoned:
            self._abandoned -= 1
        self._workers = tuple(one for one in self._workers if one is not worker)


_runtimes: weakref.WeakSet[GraphRuntime] = weakref.WeakSet()
_default = GraphRuntime()


def default_runtime() -> GraphRuntime:
    """Return the runtime of this process; it has no thread before one is needed."""
    return _default


def _close_all() -> None:
    for runtime in list(_runtimes):
        runtime.close()


def _forget_all() -> None:
    for runtime in list(_runtimes):
        runtime.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
