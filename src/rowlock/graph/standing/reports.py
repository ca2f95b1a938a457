"""What happens to a standing graph as a whole: reported to its owner, which logs it by default."""

from __future__ import annotations

from rowlock.errors import GraphDeadlockError
from rowlock.logs import get_logger

logger = get_logger(__name__)


class StandingReports:
    """Logs what it hears; a pipeline also emits it as events. Called in the event loop."""

    def deadlocked(self, graph: str, error: GraphDeadlockError) -> None:
        """Take in that the nodes waited for each other, so the values inside failed."""
        logger.error("%s\n%s", error, error.text, extra={"graph": graph})

    def rebuilt(self, graph: str, error: Exception) -> None:
        """Take in that fresh nodes were built after `error` of one of them."""
        logger.error("The graph %s has fresh nodes: one broke", graph, exc_info=error)
