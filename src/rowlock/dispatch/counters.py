"""What a dispatching pipeline counts besides what every pipeline does: answers to submissions, and
offers to workers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DispatchCounters:
    """Totals since the pipeline was built, also in a process that only submits.

    Attributes:
        submissions_admitted: that made a row; whether the caller's transaction was committed is the
            caller's.
        submissions_attached: that were given the active row of their key.
        submissions_rejected: that met the ceiling.
        submissions_draining: that came while the replica was being shut down.
        offers_accepted: of a task, by a worker.
        offers_refused: by one that was busy.
        offers_gone: to one that was gone.
    """

    submissions_admitted: int = 0
    submissions_attached: int = 0
    submissions_rejected: int = 0
    submissions_draining: int = 0
    offers_accepted: int = 0
    offers_refused: int = 0
    offers_gone: int = 0
