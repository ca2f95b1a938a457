"""Logs how rows find workers: each overflow and each round of offers, but never a flood of lines.

An overflow is expected, and a line of INFO. One of a row that has waited for half of its time is a WARNING: it comes before rows
fail with ``capacity:``. Of each kind a pipeline logs `LINES_MAX` lines in `PERIOD_S`, and counts the rest: a thousand rows that
wait overflow eight times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from rowlock.clock import monotonic
from rowlock.errors import NoWorkersAvailable
from rowlock.logs import get_logger

logger = get_logger(__name__)

LINES_MAX = 20
"""Most lines of one kind in `PERIOD_S`, and one that counts those that were left out."""
PERIOD_S = 60.0

Log = Callable[..., None]
"""A method of the logger: text, arguments, and `extra`."""


class DispatchLog:
    """The log of one pipeline.

    Args:
        name: of the pipeline.
        deadline: how long after its submission a row fails.
    """

    def __init__(self, name: str, *, deadline: timedelta) -> None:
        self._name = name
        self._deadline = deadline
        self._offers = LimitedLines(logger.info)
        self._overflows = LimitedLines(logger.info)
        self._late_overflows = LimitedLines(logger.warning)
        self._expiries = LimitedLines(logger.warning)

    def offering(self, rows: int, *, workers: int) -> None:
        """Log that rows were claimed and offered."""
        text = "%s: rows offered: %d, workers: %d"
        self._offers.log(text, self._name, rows, workers, pipeline=self._name, rows=rows, workers=workers)

    def overflowed(self, row_id: object, nobody: NoWorkersAvailable, *, waited: timedelta, rest: timedelta) -> None:
        """Log that no worker took a row.

        Args:
            row_id: the row's key.
            nobody: how many were asked.
            waited: since when it was submitted.
            rest: after what time it is offered again at the latest.
        """
        left, rest_s = max(self._deadline - waited, timedelta(0)), rest.total_seconds()
        lines = self._late_overflows if left <= self._deadline / 2 else self._overflows
        text = "%s: %s for row %s; it is offered again in %.0f s or when there is room, and fails in %.0f s"
        fields = {"pipeline": self._name, "row_id": row_id, "asked": nobody.asked, "rest_s": rest_s}
        lines.log(text, self._name, nobody.message, row_id, rest_s, left.total_seconds(), **fields)

    def expired(self, row_id: object) -> None:
        """Log that a row fails, since no worker took it in time."""
        text = "%s: row %s fails: no worker has done it in time"
        self._expiries.log(text, self._name, row_id, pipeline=self._name, row_id=row_id)


class LimitedLines:
    """Lines of one kind: so many in a period, and then a count of the rest with the first one of the next."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._count = 0
        self._ends_at = float("-inf")

    def log(self, text: str, *args: object, **fields: object) -> None:
        """Log a line, or count it."""
        if monotonic() >= self._ends_at:
            left_out, self._count, self._ends_at = max(0, self._count - LINES_MAX), 0, monotonic() + PERIOD_S
            if left_out:
                self._log("%d more lines like the next one were left out", left_out, extra={"left_out": left_out})
        self._count += 1
        if self._count <= LINES_MAX:
            self._log(text, *args, extra=fields)
