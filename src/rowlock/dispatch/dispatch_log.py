"""Logs how rows find workers: each overflow and each round of offers.

An overflow is expected, and a line of INFO. One of a row that has waited for half of its time is a
WARNING: it comes before rows fail with ``capacity:``.

Not here: that a thousand rows that wait are no flood of lines (``logs.py``).
"""

from __future__ import annotations

from datetime import timedelta

from rowlock.errors import NoWorkersAvailable
from rowlock.logs import get_logger

logger = get_logger(__name__)


class DispatchLog:
    def __init__(self, name: str, *, deadline: timedelta) -> None:
        self._name = name
        self._deadline = deadline

    def offering(self, rows: int, *, workers: int) -> None:
        fields = {"pipeline": self._name, "rows": rows, "workers": workers}
        logger.info("%s: rows offered: %d, workers: %d", self._name, rows, workers, extra=fields)

    def overflowed(
        self, row_id: object, refused: NoWorkersAvailable, *, waited: timedelta, rest: timedelta
    ) -> None:
        left, rest_s = max(self._deadline - waited, timedelta(0)), rest.total_seconds()
        log = logger.warning if left <= self._deadline / 2 else logger.info
        text = (
            "%s: %s for row %s; it is offered again in %.0f s or when there is room, and fails in"
            " %.0f s"
        )
        fields = {
            "pipeline": self._name,
            "row_id": row_id,
            "asked": refused.asked,
            "rest_s": rest_s,
        }
        log(text, self._name, refused.message, row_id, rest_s, left.total_seconds(), extra=fields)

    def expired(self, row_id: object) -> None:
        fields = {"pipeline": self._name, "row_id": row_id}
        logger.warning(
            "%s: row %s fails: no worker has done it in time", self._name, row_id, extra=fields
        )
