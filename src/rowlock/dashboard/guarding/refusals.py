"""What a person reads in place of a page, and with which status. Pure.

No text of an error that comes from the host or the database is shown; the log has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from rowlock.database.faults import is_outage
from rowlock.errors import (
    ConfigurationError,
    HostCodeError,
    PipelineError,
    RowlockError,
    TransactionTimeout,
)
from rowlock.insight.shown import shown
from rowlock.insight.steering.action_errors import (
    LeaseAlive,
    LeaseChanged,
    NotPausable,
    RowNotFound,
)

NOT_ALLOWED: Final = "You may not do this."
AWAY: Final = "The database does not answer. If you have acted, look later whether it was done."
REFUSED: Final = "The database refused the question; the log says why."
UNEXPECTED: Final = "The page could not be made; the log says why."
_STATUSES: Final[tuple[tuple[type[RowlockError], int], ...]] = (
    (RowNotFound, 404),
    (LeaseChanged, 409),
    (LeaseAlive, 409),
    (NotPausable, 409),
)


@dataclass(frozen=True, slots=True)
class PageRefusal:
    """Why there is no page.

    Attributes:
        status: of the answer.
        sentence: that is shown.
        is_expected: whether the log need not have it.
    """

    status: int
    sentence: str
    is_expected: bool = True


def refusal_of(error: Exception) -> PageRefusal:
    """Return what is shown in place of `error`."""
    if isinstance(error, HTTPException):
        return PageRefusal(error.status_code, error.detail)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return PageRefusal(status, _sentence(error))
    if isinstance(error, TransactionTimeout | TimeoutError | OSError) or is_outage(error):
        return PageRefusal(503, AWAY)
    if isinstance(error, SQLAlchemyError):
        return PageRefusal(503, REFUSED, is_expected=False)
    return _of_ours(error)


def _of_ours(error: Exception) -> PageRefusal:
    # What the first one says is what code of the host's has raised.
    if isinstance(error, HostCodeError):
        return PageRefusal(500, UNEXPECTED, is_expected=False)
    if isinstance(error, ConfigurationError):
        return PageRefusal(404, _sentence(error))
    if isinstance(error, PipelineError):
        return PageRefusal(400, _sentence(error))
    if isinstance(error, RowlockError):
        return PageRefusal(409, _sentence(error))
    return PageRefusal(500, UNEXPECTED, is_expected=False)


def _sentence(error: RowlockError) -> str:
    # Without the hint at the docs, which is for terminals; and as it is, since it may begin with
    # what somebody has typed.
    return f"{shown(error.message, 500)}."
