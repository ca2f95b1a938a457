"""Which database errors pass by themselves, and which come back every time.

The one idea: an outage says nothing about an outcome, so it is waited out while trust lasts; a
constraint violation is the outcome's own failure. Only errors that speak of the statement or of its
values are final. Everything else, an unknown code included, is the server's trouble: to wait once
too often costs a delay (`lock_timeout` at most), to fail once too early costs the work.
"""

from __future__ import annotations

from traceback import walk_tb

from sqlalchemy import exc

from rowlock.dialects import driver_packages, known_dialects
from rowlock.dialects.contract import TRANSACTIONS, ErrorVerdict
from rowlock.errors import LockWaitTimeout, RowlockError, TransactionTimeout

_OUTAGE = ErrorVerdict(passes=True, concerns_every_row=True)
_FINAL = ErrorVerdict(passes=False, concerns_every_row=False)
CAUSES_MAX = 10
"""So many exceptions may stand between one of the host's own and what the database said."""

_FINAL_KINDS = (exc.DataError, exc.IntegrityError, exc.NotSupportedError, exc.ProgrammingError)
_TRANSIENT_TYPES = (TransactionTimeout, LockWaitTimeout, TimeoutError, OSError, exc.TimeoutError)

_READING_MODULES = (
    "sqlalchemy.engine.result",
    "sqlalchemy.engine._result_cy",
    "sqlalchemy.orm.loading",
)
_SENDING_MODULES = ("sqlalchemy.engine.base", "sqlalchemy.engine.cursor")
"""Modules of SQLAlchemy that decode rows which have arrived, and that wait for the database."""


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may well succeed later unchanged.

    An exception that comes from no database does not pass, nor does one of a column's type: it may
    open files and ask servers of its own while a row is decoded.
    """
    return _verdict_on(error).passes and not is_of_a_type(error)


def is_outage(error: BaseException) -> bool:
    """Whether a transient error says of itself that it concerns every row. Of the rest it is not
    known: a page that cannot be read, or a host's trigger with a code of its own.
    """
    return is_transient(error) and _verdict_on(error).concerns_every_row


def is_of_a_type(error: BaseException) -> bool:
    """Whether the database had answered, and a column's type raised `error` while decoding."""
    is_reading = False
    for frame, _ in walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__")
        is_reading = module in _READING_MODULES or (is_reading and module not in _SENDING_MODULES)
    return is_reading


def is_refused(error: BaseException) -> bool:
    """Whether the database answered a statement with an error, and so did nothing of it."""
    error = _of_database(error)
    return _is_of_a_driver(error) and _fault_of(error) is not None


def is_of_the_server(raised: BaseException) -> bool:
    fault = _fault_of(raised)
    return fault is not None and fault.is_of_the_server


def is_of_a_database(error: BaseException) -> bool:
    """Whether an error came from a database or from the way to it, and not from code of a host."""
    error = _of_database(error)
    return isinstance(error, _TRANSIENT_TYPES) or _is_of_a_driver(error)


def is_conflict(error: BaseException) -> bool:
    """Whether the database rolled the whole transaction back for another one's sake: a
    serialization failure, or a deadlock. Nothing of it was committed, also if that was the answer
    to its COMMIT.
    """
    return _verdict_on(error).is_conflict


def is_after_an_error(error: BaseException) -> bool:
    return _verdict_on(error).is_after_an_error


def may_be_of_the_size(error: BaseException) -> bool:
    """Whether a smaller transaction may succeed."""
    verdict = _verdict_on(error)
    return verdict.is_conflict or verdict.is_of_the_size


def is_of_the_schema(error: BaseException) -> bool:
    """Whether the statement is refused whichever rows it is about: a column is not there, say."""
    return not is_transient(_of_database(error)) and _verdict_on(error).is_of_the_schema


def may_be_of_a_value(error: BaseException) -> bool:
    return not is_transient(error) and not isinstance(error, exc.IntegrityError | RowlockError)


def is_of_the_values(error: BaseException) -> bool:
    return _verdict_on(error).is_of_the_values


def _verdict_on(error: BaseException) -> ErrorVerdict:
    error = _of_database(error)
    if isinstance(error, _TRANSIENT_TYPES):
        return _OUTAGE._replace(is_of_the_size=isinstance(error, TransactionTimeout))
    fault = _fault_of(error) if _is_of_a_driver(error) else _FINAL
    if fault is None:
        # Without a code there is nothing better than what the driver calls it.
        fault = _FINAL if isinstance(error, _FINAL_KINDS) else _OUTAGE
    if _is_of_the_connection(error):
        # The connection of a fault of the server is invalidated by us, which says no more of it.
        concerns_every_row = fault.concerns_every_row or not fault.is_of_the_server
        return fault._replace(passes=True, concerns_every_row=concerns_every_row)
    return fault


def _of_database(error: BaseException) -> BaseException:
    """Return what the database said, also where a host's ``handle_error`` listener has put an
    exception of its own in its place.

    What host code raised within a transaction of ours is a `HostCodeError`, and says nothing of the
    database.
    """
    cause = error
    for _ in range(CAUSES_MAX):
        if isinstance(cause, (exc.SQLAlchemyError, *_TRANSIENT_TYPES)) or _is_of_a_driver(cause):
            return cause
        if cause.__cause__ is None or isinstance(cause, RowlockError):
            break
        cause = cause.__cause__
    return error


def _is_of_a_driver(error: BaseException) -> bool:
    # SQLAlchemy wraps what a statement raises; what reaches us bare is the driver's trouble with
    # its connection, such as one that is being torn down, or was raised by a host that uses the
    # driver itself.
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, exc.DBAPIError) or package in driver_packages()


def _is_of_the_connection(error: BaseException) -> bool:
    if isinstance(error, exc.PendingRollbackError):
        # Host code has swallowed the error that invalidated the connection; this is what each
        # later statement of the transaction is answered.
        return error.code == "8s2b"
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def _fault_of(error: BaseException) -> ErrorVerdict | None:
    raised = error.orig if isinstance(error, exc.DBAPIError) else error
    # An error does not name its engine; each database knows its own by the code.
    faults = (TRANSACTIONS.on(dialect.name).fault_of(raised) for dialect in known_dialects())
    return next((fault for fault in faults if fault is not None), None)
