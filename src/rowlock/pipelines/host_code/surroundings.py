"""What the host has put around every attempt: entered before `process` is called, and left behind
it.

The one idea: whoever looks on harms no outcome. What is around an attempt sees its error and cannot
swallow it, and what it raises itself is logged and goes no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.host_code.seams import Surround

logger = get_logger(__name__)


class Surroundings:
    """What is around one attempt. No coroutine, which would cost each row more than a span does.

    Args:
        surround: return what is entered, in this order.
        item: is worked on.
        pipeline: its name, for the log.
    """

    __slots__ = ("_entered", "_item", "_pipeline", "_surround")

    def __init__(
        self, surround: Sequence[Surround], item: PipelineItem[Any], *, pipeline: str
    ) -> None:
        self._surround, self._item, self._pipeline = surround, item, pipeline
        self._entered: list[AbstractContextManager[object]] = []

    def enter(self) -> None:
        """Enter all of them, in the task of the attempt."""
        for make in self._surround:
            try:
                manager = make(self._item)
                manager.__enter__()
            # Of the host's, which raises anything.
            except BaseException:
                logger.exception(
                    "%s: what surrounds an attempt could not be entered",
                    self._pipeline,
                    extra=self._fields(),
                )
            else:
                self._entered.append(manager)

    def leave(self, error: BaseException | None) -> None:
        """Leave those that were entered, in the other order; `error` is that of the attempt."""
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        for manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, traceback)
            except BaseException as raised:
                # One that is a generator lets the attempt's own error through.
                if raised is not error:
                    logger.exception(
                        "%s: what surrounds an attempt could not be left",
                        self._pipeline,
                        extra=self._fields(),
                    )

    def _fields(self) -> dict[str, object]:
        return {"pipeline": self._pipeline, "row_id": self._item.id}
