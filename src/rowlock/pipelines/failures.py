"""An attempt that failed: told to the log and to listeners, and turned into the outcome that is written for it."""

from __future__ import annotations

from typing import Any

from rowlock import events
from rowlock.errors import describe
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Park, Retry

logger = get_logger(__name__)


def record_failure(context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException) -> Retry:
    """Tell of `error` and return the outcome for it."""
    logger.error(
        "%s: processing row %s failed",
        context.name,
        item.id,
        extra={"pipeline": context.name, "row_id": item.id},
        exc_info=error,
    )
    events.emit(events.ItemFailed(context.name, item.id, item.lock_token, describe(error)))
    return Retry(error=error)


def record_unreadable(context: PipelineContext[Any], item: PipelineItem[Any], column: str) -> Park | Retry:
    """Tell of a row that cannot be read and return the outcome for it: it is parked; without a schedule, its stamp is mended."""
    extra = {"pipeline": context.name, "row_id": item.id, "column": column}
    if context.leased.has_schedule:
        logger.error("%s: row %s is parked: its %s cannot be read", context.name, item.id, column, extra=extra)
        return Park(f"{column} cannot be read: it holds no time that Python has; correct it, then unpark the row")
    text = "%s: the %s of row %s cannot be read; it is set to the present time, and the row waits for its next turn"
    logger.error(text, context.name, column, item.id, extra=extra)
    return Retry()
