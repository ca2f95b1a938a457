"""The parts of one run, joined: a scheduler, its lanes in the event loop and in threads, and what
makes their calls; and how the values of a run that has ended are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context, copy_context

from rowlock.clock import is_real
from rowlock.graph.building.topology import CHECKED_AT_ONCE, Node, Topology
from rowlock.graph.lanes.calls import Calls
from rowlock.graph.lanes.event_loop import LoopLanes
from rowlock.graph.lanes.runtime import GraphRuntime, default_runtime
from rowlock.graph.lanes.threads import ThreadLanes
from rowlock.graph.processor import Processor
from rowlock.graph.scheduling.interrupt import add_check, goes_on
from rowlock.graph.scheduling.outside import Phase
from rowlock.graph.scheduling.scheduler import Scheduler
from rowlock.graph.tracebacks import set_traceback
from rowlock.logs import get_logger

logger = get_logger(__name__)


class RunWiring:
    """What one run consists of, in the running event loop.

    Attributes:
        scheduler: decides which calls are next.
        lanes: those in the event loop.
    """

    def __init__(
        self,
        graph: Topology,
        *,
        keep_going: Callable[[], bool] | None = None,
        threads_max: int | None = None,
        runtime: GraphRuntime | None = None,
        context: Context | None = None,
        on_stop: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Join the parts; nothing is begun.

        Args:
            graph: its run has begun.
            keep_going: asked before each call; the run ends once it returns False.
            threads_max: how many calls may run in threads; None for as many as the runtime has.
            runtime: whose threads; those of this process by default.
            context: calls get a copy of it; of the current one by default.
            on_stop: called in the loop when the run ends before its time.
            on_end: called in the loop when it has ended.
        """
        self._runtime = runtime or default_runtime()
        self.lanes = LoopLanes(on_stop=on_stop, on_end=on_end)
        self.scheduler = Scheduler(graph, outside=self.lanes, stopwatch=graph.stopwatch)
        own = copy_context() if context is None else context.copy()
        add_check(own, lambda: self.scheduler.phase is not Phase.RUNNING)
        if keep_going is not None:
            add_check(own, lambda: not goes_on(keep_going))
        calls = Calls(
            graph,
            self.scheduler,
            stopwatch=graph.stopwatch,
            context=own,
            keep_going=keep_going,
        )
        self.lanes.scheduler, self.lanes.calls = self.scheduler, calls
        self._threads: ThreadLanes | None = None
        if is_real():
            self.lanes.threads = self._threads = ThreadLanes(
                self._runtime,
                calls,
                self.scheduler,
                submit_to_loop=self.lanes.submit,
                threads_max=threads_max,
            )

    def calls(self) -> list[Node]:
        """Return the nodes whose calls run in threads or are awaited; in the loop."""
        nodes = self.lanes.nodes()
        if self._threads is not None:
            nodes += self._threads.nodes()
        return [node for node in nodes if not node.ticket]

    def replace_thread(self, processor: Processor) -> None:
        """Have the thread replaced that makes a call of `processor` now; it ends with the call."""
        worker = None if self._threads is None else self._threads.worker_of(processor)
        if worker is not None:
            self._runtime.abandon(worker)


def forget_values(graph: Topology) -> Iterator[None]:
    """Forget all values of a run that has ended, step by step."""
    dropped = graph.changes.dropped
    for node in graph.nodes:
        for port in node.processor.inputs:
            if port.is_connected:
                port.edge.clear()
        try:
            if not node.is_abandoned:
                node.processor.clear()
            node.processor.attach(None)
        except BaseException as error:  # a processor may be the host's
            logger.warning("%s could not forget its values", node.operator, exc_info=error)
        node.processor.context = None
        if not node.index % CHECKED_AT_ONCE:
            dropped.clear()
            yield
    dropped.clear()


def log_later_errors(graph: Topology) -> None:
    """Log what was raised after the error that ended a run."""
    for later in graph.later_errors:
        logger.warning("%s failed after the run was to end", later.operator, exc_info=later.error)
        set_traceback(later.error, None)
