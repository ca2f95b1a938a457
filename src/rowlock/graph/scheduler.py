"""The scheduler of one run: one mutex, one inbox, one count of what is in flight; the end of the
run is decided in one place, under that mutex. And what it shows the event loop of its run.

Whatever happens is an entry of the inbox: a call that ended, a timer, a wake-up, a stop. The holder
of the mutex empties it, asks the nodes concerned, and looks at the inbox again after it has
released the mutex. So an entry needs no waiting: if the mutex is held, its holder will see it. Only
threads of a runtime wait for the mutex; the event loop, `Processor.wake`, signal handlers and
``__del__`` do not.

Calls in flight are counted under the mutex only: one more for each call that is handed out and each
timer that is set, one less for each that is taken in. "Finished" and "deadlocked" are therefore
facts, and not guesses about threads.

No code of the host runs under the mutex. What is to be done afterwards is collected meanwhile:
calls, values to drop, timers to set.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import Final, Protocol, TypeAlias

from rowlock.errors import InternalError
from rowlock.graph.fix_point import Spread, deadlock_of, hand_of, settle, wake
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.topology import CHECKED_AT_ONCE, Node, RaisedLater, Topology, node_of


class Phase(IntEnum):
    """Where a run is; it goes on to later phases only."""

    RUNNING = 0
    """Calls are handed out."""
    STOPPING = 1
    """No call is handed out; those in flight are cancelled, and waited for."""
    CLOSING = 2
    """Sources are closed, each in its place; no other call is in flight."""
    ENDED = 3
    """Nothing is in flight, and nothing will be."""


RUNNING = Phase.RUNNING


class Outside(Protocol):
    """The event loop, as the scheduler uses it: never under its mutex, and from any thread."""

    def advance_soon(self) -> None: ...

    def set_timer(self, node: Node, number: int, seconds: float) -> None:
        """Set a timer in the place of an earlier one."""

    def cancel_timer(self, node: Node) -> None: ...

    def cancel_calls(self) -> None: ...

    def ended(self) -> None: ...


LATER_ERRORS_MAX: Final = 16
"""How many errors are kept beside the first."""

UNLIMITED: Final = 1 << 62
"""A bound for the nodes asked at once, for threads: nothing else waits for a thread."""


Entry: TypeAlias = Node | Callable[[float], None]


class Scheduler:
    """Decides which calls of one run are made next, and when the run has ended."""

    def __init__(
        self, graph: Topology, *, outside: Outside, stopwatch: Callable[[], float]
    ) -> None:
        self.phase = Phase.RUNNING
        self.error: BaseException | None = None  # what ended the run before its time
        self.in_flight = 0  # calls that were handed out and have not ended, and timers that are set
        self.unfinished = len(graph.nodes)
        self.asks = 0
        self._latest = 0.0
        self._graph = graph
        self._changes = graph.changes
        self._outside = outside
        self._stopwatch = stopwatch
        self._mutex = threading.Lock()
        self._inbox: deque[Entry] = deque()
        self._afterwards: list[Callable[[], None]] = []
        self._timers: set[Node] = set()
        self._open: list[Processor] = []
        self._closers: list[Node] = []
        self._first: list[Node] = []

    def start(self, *, is_checked: bool = True) -> Iterator[None]:
        """Have the nodes without outputs asked, step by step; `advance` does it."""
        # A graph that is not checked may have ports without an edge, so its lanes hand nothing on.
        spreads: dict[Node, Spread | None] = {}
        for node in reversed(self._graph.nodes):
            processor = node.processor
            node.since = self._graph.started_at or 0.0
            processor.attach(self)
            if type(processor).is_open is not Processor.is_open:
                self._open.append(processor)
            if type(processor).closing is not Processor.closing:
                self._closers.append(node)
            node.hand = hand_of(node, spreads) if is_checked else None
            if not processor.outputs:
                self._first.append(node)
            if not node.index % CHECKED_AT_ONCE:
                yield
        self._inbox.appendleft(self._wake_first)

    def call_ended(self, node: Node) -> None:
        """Enter that a call has ended; what it raised is in the node. Followed by `advance`."""
        self._inbox.append(node)

    def timer_fired(self, node: Node, number: int) -> None:
        """Enter that a timer has fired. Followed by `advance`."""
        self._inbox.append(partial(self._timer_fired, node, number))

    def wake(self, processor: Processor) -> None:
        """Have the node of `processor` asked soon; from anywhere."""
        node = node_of(processor)
        if node.has_wake:
            return  # it will be asked after this
        node.has_wake = True
        self._inbox.append(partial(self._wake, node))
        self._outside.advance_soon()

    def stop(self, error: BaseException | None) -> None:
        """End the run before its time, because of `error` or a cancellation; from anywhere."""
        self._inbox.append(partial(self._stop, error))
        self._outside.advance_soon()

    def abandon(self) -> None:
        """Wait no longer for the calls that were begun; from anywhere."""
        self._inbox.append(self._abandon)
        self._outside.advance_soon()

    def wake_after(self, processor: Processor, seconds: float | None) -> None:
        """Set the timer of the node that is asked, or take it away."""
        node = self._changes.asked
        if not isinstance(node, Node) or node.processor is not processor:
            msg = "wake_after() outside of the processor's own event()"
            raise InternalError(msg)
        node.timer += 1
        if seconds is None:
            self._cancel_timer(node)
            return
        if not node.has_timer:
            node.has_timer = True
            self._timers.add(node)
            self.in_flight += 1
        self._afterwards.append(partial(self._outside.set_timer, node, node.timer, seconds))

    def advance(self, *, wait: bool, asks_max: int) -> list[Node]:
        """Empty the inbox, ask up to `asks_max` nodes, and return the next calls."""
        # Without `wait`, the holder of the mutex does the work, if there is one.
        calls: list[Node] = []
        mutex, changes = self._mutex, self._changes
        asks_end = self.asks + asks_max
        while mutex.acquire(wait):
            wait = False
            afterwards = dropped = None
            try:
                # What is left, since a node that wakes itself is in the inbox each time.
                self._drain(calls, asks_end - self.asks)
                if self._afterwards:
                    afterwards, self._afterwards = self._afterwards, []
                if changes.dropped:
                    dropped, changes.dropped = changes.dropped, []
            finally:
                mutex.release()
            if dropped is not None:
                dropped.clear()
            if afterwards is not None:
                for act in afterwards:
                    act()
            if not self._inbox:
                break
        return calls

    def advance_after(self, node: Node, *, wait: bool, asks_max: int) -> list[Node]:
        """The same for the end of a call, in fewer steps if nothing else waits."""
        mutex, changes = self._mutex, self._changes
        if self._inbox or not mutex.acquire(blocking=False):
            self._inbox.append(node)
            return self.advance(wait=wait, asks_max=asks_max)
        calls: list[Node] = []
        asks_end = self.asks + asks_max
        # Another thread may have been faster to report, and nodes rest since then.
        now = self._latest = max(node.ended_at, self._latest)
        try:
            self._take_in(node, calls, now)
            if changes.owners:
                self._settle(calls, now, asks_max)
            if not self.in_flight:
                self._decide(calls, now)
            is_whole = not self._afterwards and not changes.dropped
        finally:
            mutex.release()
        if self._inbox or not is_whole:
            calls += self.advance(wait=False, asks_max=asks_end - self.asks)
        return calls

    # What follows runs under the mutex.

    def _drain(self, calls: list[Node], asks_max: int) -> None:
        now = self._latest = self._stopwatch()
        inbox = self._inbox
        while inbox:
            entry = inbox.popleft()
            if isinstance(entry, Node):
                self._take_in(entry, calls, now)
            else:
                entry(now)
        if self._changes.owners:
            self._settle(calls, now, asks_max)
        if not self.in_flight:
            self._decide(calls, now)

    def _take_in(self, node: Node, calls: list[Node], now: float) -> None:
        if node.is_abandoned:
            return
        self.in_flight -= 1
        node.is_busy = False
        node.calls += 1
        busy_s = node.ended_at - node.started_at
        node.busy_s += busy_s
        if busy_s > node.slowest_s:  # noqa: PLR1730  # max() takes three times as long
            node.slowest_s = busy_s
        if node.error is not None:
            error, node.error = node.error, None
            self._fail(node, error, now)
        elif self.phase is RUNNING:
            if node.hand is not None:
                before = len(calls)
                is_handed_on = node.hand.after_call(calls, now)
                self.in_flight += len(calls) - before
                if is_handed_on:
                    return
            node.is_woken = True
            self._changes.owners.append(node)
        node.is_closing = False

    def _settle(self, calls: list[Node], now: float, asks_max: int) -> None:
        changes = self._changes
        if self.phase is not RUNNING:
            changes.owners.clear()
            return
        before = len(calls)
        try:
            finished, asked = settle(changes, calls, now=now, asks_max=asks_max)
        except BaseException as error:  # noqa: BLE001  # whatever a processor raises ends the run
            node = changes.asked
            changes.asked = None
            assert isinstance(node, Node)
            for called in calls[before:]:
                called.is_busy = False
            del calls[before:]
            self._fail(node, error, now)
            return
        self.asks += asked
        for called in calls[before:] if before else calls:
            called.ticket.append(None)
        self.in_flight += len(calls) - before
        if finished:
            self.unfinished -= finished
            for node in [one for one in self._timers if one.status is NodeStatus.FINISHED]:
                self._cancel_timer(node)
        if changes.owners:
            self._afterwards.append(self._outside.advance_soon)

    def _decide(self, calls: list[Node], now: float) -> None:
        """Decide, while nothing is in flight, whether the run goes on. Only here a run ends."""
        if self._inbox:
            return
        if self.phase is Phase.RUNNING:
            if self._changes.owners:
                return
            if self.unfinished:
                try:
                    if any(processor.is_open() for processor in self._open):
                        return
                    error: BaseException = deadlock_of(self._graph)
                except BaseException as raised:  # noqa: BLE001  # by a processor that is asked for it
                    error = raised
                self._stop(error, now)
        if self.phase < Phase.CLOSING:
            self._close(calls, now)
        if self.phase is Phase.CLOSING and not self.in_flight:
            self.phase = Phase.ENDED
            self._afterwards.append(self._outside.ended)

    def _close(self, calls: list[Node], now: float) -> None:
        self.phase = Phase.CLOSING
        for node in self._closers:
            if node.is_abandoned:
                continue
            node.is_closing = True
            try:
                how = node.processor.closing()
            except BaseException as error:  # noqa: BLE001  # the others are closed nevertheless
                self._fail(node, error, now)
                how = None
            node.is_closing = how is not None
            if how is not None:
                node.status, node.is_busy = how, True
                node.ticket.append(None)
                self.in_flight += 1
                calls.append(node)

    def _fail(self, node: Node, error: BaseException, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self._stop(error, now)
        elif self.error is None and node.is_closing:
            self.error = error
        elif len(self._graph.later_errors) < LATER_ERRORS_MAX:
            self._graph.later_errors.append(RaisedLater(node.operator, error))
        else:
            self._changes.dropped.append(error)

    def _stop(self, error: BaseException | None, now: float) -> None:
        if self.phase is not Phase.RUNNING:
            if self.phase is not Phase.ENDED:
                self._afterwards.append(self._outside.cancel_calls)
            return
        self.phase = Phase.STOPPING
        self.error = error
        self._changes.owners.clear()
        for node in list(self._timers):
            self._cancel_timer(node)
        for node in self._graph.nodes:
            if node.ticket and take_ticket(node):
                self.in_flight -= 1
                node.is_busy = False
        self._afterwards.append(self._outside.cancel_calls)

    def _abandon(self, _now: float) -> None:
        for node in self._graph.nodes:
            is_called = node.is_busy and node.status is not NodeStatus.FINISHED
            if is_called and not node.ticket:
                node.is_abandoned, node.is_busy = True, False
                self.in_flight -= 1

    def _wake_first(self, _now: float) -> None:
        for node in self._first:
            wake(node, self._changes)
        self._first.clear()

    def _wake(self, node: Node, _now: float) -> None:
        node.has_wake = False
        if self.phase is Phase.RUNNING:
            wake(node, self._changes)

    def _timer_fired(self, node: Node, number: int, _now: float) -> None:
        if node.has_timer and node.timer == number:
            self._cancel_timer(node)
            node.processor.is_due = True
            wake(node, self._changes)

    def _cancel_timer(self, node: Node) -> None:
        if node.has_timer:
            node.has_timer = False
            self._timers.discard(node)
            self.in_flight -= 1
            self._afterwards.append(partial(self._outside.cancel_timer, node))


def take_ticket(node: Node) -> bool:
    """Take the ticket of a call that was handed out, and return whether it was still there."""
    # One side succeeds: the lane that begins the call, or the stop that withdraws it.
    try:
        node.ticket.pop()
    except IndexError:
        return False
    return True
