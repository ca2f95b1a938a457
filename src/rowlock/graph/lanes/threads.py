"""The lanes of a run in threads, and one thread of a runtime.

A thread has a deque of calls. The first call that results from a call stays with the thread that
has just ended it, so that a value goes on where its memory is warm; further ones go to its deque,
and one sleeping thread is woken for each. A thread pops its own newest call; others steal the
oldest, which has waited longest. After a bounded number of calls for one run, all that is left goes
to the end of the runtime's shared deque, so that other runs are served.

Deques only append and pop, which is atomic; everything else is behind the runtime's lock.

Source: the work stealing of Databend's executor tasks, and of Go's scheduler for the bound.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from rowlock.graph.building.topology import Node
from rowlock.graph.lanes.calls import Calls
from rowlock.graph.lanes.event_loop import is_of_loop
from rowlock.graph.processor import Processor
from rowlock.graph.scheduling.scheduler import UNLIMITED, Scheduler

CALLS_MAX: Final = 64
"""How many calls of one run a thread makes before it serves the others."""

SERVED_S_MAX: Final = 0.01
"""After this time a thread serves other runs, in seconds."""


class ThreadCall(NamedTuple):
    """A call that waits for a thread."""

    lanes: ThreadLanes
    node: Node


class GraphThreads(Protocol):
    """What threads need of their runtime."""

    def submit(self, calls: list[ThreadCall]) -> None:
        """Make these calls soon, the oldest first."""

    def find(self, worker: GraphThread) -> ThreadCall | None:
        """Return the oldest call that waits for any thread, if there is one."""

    def rest(self, worker: GraphThread) -> ThreadCall | None:
        """Wait for a call; None if the thread is to end."""

    def wake(self, count: int) -> None:
        """Wake a thread for each of so many calls, or begin one."""

    def leave_to_others(self, worker: GraphThread) -> None:
        """Put what waits for this thread at the end of what waits for any."""

    def waits(self, worker: GraphThread) -> AbstractContextManager[None]:
        """Have the thread replaced in the block."""
        ...

    def is_surplus(self, worker: GraphThread) -> bool:
        """Return whether the thread is to end now, since it was replaced."""
        ...


class ThreadLanes:
    """The calls of one run that are made in threads."""

    def __init__(
        self,
        pool: GraphThreads,
        calls: Calls,
        scheduler: Scheduler,
        *,
        submit_to_loop: Callable[[list[Node]], None],
        threads_max: int | None,
    ) -> None:
        """Make calls in the threads of `pool`.

        Args:
            pool: a runtime.
            calls: makes them.
            scheduler: says which are next.
            submit_to_loop: has calls made in the event loop.
            threads_max: how many of them may run at the same time; None for as many as there are
                threads.
        """
        self._pool = pool
        self._calls = calls
        self._scheduler = scheduler
        self._submit_to_loop = submit_to_loop
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
                was_made = self._calls.call(node)
        else:
            was_made = self._calls.call(node)
        self._workers.pop(node, None)
        found: list[ThreadCall] = []
        if was_made:
            of_loop: list[Node] = []
            for one in self._scheduler.advance_after(node, wait=True, asks_max=UNLIMITED):
                if is_of_loop(one):
                    of_loop.append(one)
                else:
                    found.append(ThreadCall(self, one))
            if of_loop:
                self._submit_to_loop(of_loop)
        return self._admit(found, ended=1)

    def nodes(self) -> list[Node]:
        """Return the nodes whose calls are made now."""
        return list(self._workers)

    def worker_of(self, processor: Processor) -> GraphThread | None:
        """Return the thread that makes a call of a processor now."""
        node = processor.owner
        return self._workers.get(node) if isinstance(node, Node) else None

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
    """One thread of a runtime.

    Attributes:
        pool: the runtime that it belongs to.
        calls: what waits for this thread first.
        awake: held while it sleeps; released once to wake it.
        blocks: how many waits for something else it is in.
        is_abandoned: it was replaced for good, and ends when its call returns.
    """

    def __init__(self, pool: GraphThreads, *, number: int) -> None:
        """Work for `pool`, once started."""
        super().__init__(name=f"rowlock graph {number}", daemon=True)
        self.calls: deque[ThreadCall] = deque()
        self.awake = threading.Lock()
        self.awake.acquire()
        self.blocks = 0
        self.is_abandoned = False
        self.pool = pool
        self._served: ThreadLanes | None = None
        self._served_calls = 0
        self._served_since = 0.0

    def run(self) -> None:
        """Make calls until the runtime ends this thread."""
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
