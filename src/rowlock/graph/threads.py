"""The lanes of a run in threads; and `GraphRuntime`: the threads that all runs share, how many
there are, and how they sleep and end.

A thread has a deque of calls. The first call that results from a call stays with the thread that
has just ended it, so that a value goes on where its memory is warm; further ones go to its deque,
and one sleeping thread is woken for each. A thread pops its own newest call; others steal the
oldest, which has waited longest. After a bounded number of calls for one run, all that is left goes
to the end of the runtime's shared deque, so that other runs are served.

A thread is begun when a call waits and none sleeps, up to a bound, and ends when it has slept for
a while. One that waits for something else (a nested run, a read that blocks) is replaced meanwhile;
one whose call ignores the end of its run is replaced for good.

No wake-up is lost: a call is put into a deque before the lock is acquired to wake a sleeper, and a
thread looks into all deques under that lock before it counts as one. Deques only append and pop,
which is atomic; everything else is behind that lock.

Source: the work stealing of Databend's executor tasks, and of Go's scheduler for the bound.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NamedTuple

from rowlock.clock import is_real, stopwatch
from rowlock.graph.event_loop import LoopLanes, is_of_loop
from rowlock.graph.host_code import bounded
from rowlock.graph.scheduler import UNLIMITED
from rowlock.graph.topology import Node

CALLS_MAX: Final = 64
"""How many calls of one run a thread makes before it serves the others."""

SERVED_S_MAX: Final = 0.01
"""After this time a thread serves other runs, in seconds."""


class ThreadCall(NamedTuple):
    lanes: ThreadLanes
    node: Node


class ThreadLanes:
    def __init__(
        self, pool: GraphRuntime | None, loop_lanes: LoopLanes, *, threads_max: int | None = None
    ) -> None:
        """`threads_max` bounds the calls of this run in threads; None: as many as the pool has."""
        self._pool = pool or default_runtime()
        self._loop_lanes = loop_lanes
        if is_real():
            loop_lanes.submit_to_threads = self.submit
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._waiting: deque[ThreadCall] = deque()
        self._admitted = 0
        self._workers: dict[Node, GraphThread] = {}

    def submit(self, nodes: list[Node]) -> None:
        """Make the calls of `nodes` soon, from outside of the threads."""
        calls = self._admit([ThreadCall(self, node) for node in nodes])
        if calls:
            self._pool.submit(calls)

    def make(self, node: Node, worker: GraphThread) -> list[ThreadCall]:
        """Make a call in `worker`, and return the next ones for it: the first is its own."""
        self._workers[node] = worker
        if node.processor.blocks:
            with self._pool.waits(worker):
                was_made = self._loop_lanes.call(node)
        else:
            was_made = self._loop_lanes.call(node)
        self._workers.pop(node, None)
        found: list[ThreadCall] = []
        if was_made:
            of_loop: list[Node] = []
            scheduler = self._loop_lanes.scheduler
            for one in scheduler.advance_after(node, wait=True, asks_max=UNLIMITED):
                if is_of_loop(one):
                    of_loop.append(one)
                else:
                    found.append(ThreadCall(self, one))
            if of_loop:
                self._loop_lanes.submit(of_loop)
        return self._admit(found, ended=1)

    def nodes(self) -> list[Node]:
        return [node for node in list(self._workers) if not node.ticket]

    def replace(self, node: Node) -> None:
        """Replace the thread that makes a call of `node` now, if any; it ends with the call."""
        worker = self._workers.get(node)
        if worker is not None:
            self._pool.abandon(worker)

    def _admit(self, calls: list[ThreadCall], *, ended: int = 0) -> list[ThreadCall]:
        """Return the calls that may be made now; others wait for calls of this run to end."""
        if self._threads_max is None:
            return calls
        with self._lock:
            self._admitted -= ended
            self._waiting.extend(calls)
            admitted = []
            while self._waiting and self._admitted < self._threads_max:
                self._admitted += 1
                admitted.append(self._waiting.popleft())
        return admitted


class GraphThread(threading.Thread):
    def __init__(self, pool: GraphRuntime, *, number: int) -> None:
        super().__init__(name=f"rowlock graph {number}", daemon=True)
        self.calls: deque[ThreadCall] = deque()  # what waits for this thread first
        self.awake = threading.Lock()  # held while it sleeps; released once to wake it
        self.awake.acquire()
        self.blocks = 0  # how many waits for something else it is in
        self.is_abandoned = False  # it was replaced for good, and ends when its call returns
        self.pool = pool
        self._served: ThreadLanes | None = None
        self._served_calls = 0
        self._served_since = 0.0

    def run(self) -> None:
        _current.worker = self
        pool = self.pool
        while not pool.is_surplus(self):
            call = self._next()
            if call is None:
                # A thread that sleeps keeps no graph alive, nor what is in it.
                self._served = None
                call = pool.rest(self)
            if call is None:
                return
            self._make(call)

    def _next(self) -> ThreadCall | None:
        try:
            return self.calls.pop()
        except IndexError:
            return self.pool.find(self)

    def _make(self, call: ThreadCall) -> None:
        lanes, node = call
        if lanes is not self._served:
            self._served, self._served_calls = lanes, 0
        found = lanes.make(node, self)
        if not self._served_calls:
            self._served_since = node.started_at
        self._served_calls += 1
        if found:
            self.calls.extend(reversed(found))
            if len(found) > 1:
                self.pool.wake(len(found) - 1)
        if self._served_calls >= CALLS_MAX or node.ended_at - self._served_since >= SERVED_S_MAX:
            self._served = None
            self.pool.leave_to_others(self)


class _Current(threading.local):
    worker: GraphThread | None = None


_current = _Current()


def replaced_meanwhile() -> AbstractContextManager[None]:
    """Have the thread of a runtime, if this is one, replaced in the block: it waits for others."""
    worker = _current.worker
    return nullcontext() if worker is None else worker.pool.waits(worker)


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
