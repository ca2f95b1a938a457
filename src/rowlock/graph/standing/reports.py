"""What happens to a standing graph as a whole: reported to its owner, which logs it by default."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rowlock.errors import GraphDeadlockError
from rowlock.logs import get_logger

logger = get_logger(__name__)


class StandingReports:
    """Logs what it hears; a pipeline also emits it as events. Called in the event loop."""

    def deadlocked(self, graph: str, error: GraphDeadlockError) -> None:
        """Take in that the nodes waited for each other, so the values inside failed."""
        logger.error("%s\n%s", error, error.text, extra={"graph": graph})

    def call_took_long(self, graph: str, *, operator: str, lane: int, seconds: float) -> None:
        """Take in that a call has run for 5, 10, 20 ... seconds, and still does."""
        logger.warning(
            "A call of %s (lane %s) of the graph %s takes long: %.0f s so far",
            operator,
            lane,
            graph,
            seconds,
            extra={"graph": graph, "operator": operator, "seconds": seconds},
        )

    def stuck(self, graph: str, text: str) -> None:
        """Take in that a call has run for 200 s; once for each set of nodes.

        Args:
            graph: its name.
            text: the graph with its flags, a line for each node.
        """
        logger.warning("The graph %s, since a call takes very long:\n%s", graph, text)

    def rebuilt(self, graph: str, error: Exception) -> None:
        """Take in that fresh nodes were built after `error` of one of them."""
        logger.error("The graph %s has fresh nodes: one broke", graph, exc_info=error)


class ContainedReports(StandingReports):
    """Hands on what it hears to the host's reports, which may fail: callers would wait for ever."""

    def __init__(self, reports: StandingReports) -> None:
        self._reports = reports

    def deadlocked(self, graph: str, error: GraphDeadlockError) -> None:
        """Hand it on."""
        _contained(partial(self._reports.deadlocked, graph, error))

    def call_took_long(self, graph: str, *, operator: str, lane: int, seconds: float) -> None:
        """Hand it on."""
        report = self._reports.call_took_long
        _contained(partial(report, graph, operator=operator, lane=lane, seconds=seconds))

    def stuck(self, graph: str, text: str) -> None:
        """Hand it on."""
        _contained(partial(self._reports.stuck, graph, text))

    def rebuilt(self, graph: str, error: Exception) -> None:
        """Hand it on."""
        _contained(partial(self._reports.rebuilt, graph, error))


def _contained(report: Callable[[], None]) -> None:
    try:
        report()
    except BaseException as error:  # it is code of the host
        logger.warning("A report about a graph failed", exc_info=error)
