"""An attempt that failed: told to the log and to listeners, and turned into the outcome that is written for it."""

from __future__ import annotations

from typing import Any

from rowlock import events
from rowlock.errors import describe
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Retry

logger = get_logger(__name__)


def note_failure(context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException) -> Retry:
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
