"""Cuts the values of rows out of errors, before those are logged or stored.

A database, its driver and SQLAlchemy put the values of a statement into the text of an error
(``[parameters: ...]``, ``DETAIL: Key (email)=(...) already exists.``), and the log and
`last_error` are read by more people than the row is. The first line says what went wrong; the rest
is cut. A logged error is replaced by a copy, and so is what it is chained to, since JSON formatters
and error trackers go by the error itself. Errors of the host's own code keep their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from sqlalchemy.exc import DBAPIError, StatementError

CHAINED_MAX = 30
"""How many errors of a chain are copied, one below the other; those below are left out."""
LOOKED_AT_MAX = 200
"""Most errors that are looked at, members of groups included; others are left out."""

_database_packages = {"sqlalchemy"}
_WITH_STATEMENT = re.compile(r"\n\s*(?:\[SQL: |\[parameters: |\[SQL parameters |DETAIL: )")
"""Where values begin in a text that quotes an error of a database."""
_CLASSES = re.compile(r"(?:\([\w.]+\) ?)?(?:<class '[\w.]+'>: )?")
"""What SQLAlchemy puts in front of a driver's text."""
_ARGUMENT = re.compile(r"(query argument \$\d+[^:]*): .*")
"""Of a driver, of a value that it cannot send."""
_VALUES = re.compile(r"['\"\d:<]")
"""Where a quoted value, a number or what stands behind a colon begins."""
_COLUMN = "rowlock_column"
"""Where an error keeps the column that it is about."""
_DATA_ERRORS = "22"
"""The class of SQLSTATE whose text ends in the value, behind a colon."""


def add_database_packages(packages: Iterable[str]) -> None:
    """Take errors of these top-level packages for those of a database, whose texts hold values."""
    _database_packages.update(packages)


def text_of(error: BaseException) -> str:
    """Return what `error` says without values of a statement."""
    of_database = _is_of_database(error)
    text = _of_database(error) if of_database else _WITH_STATEMENT.split(str(error), 1)[0]
    column = vars(error).get(_COLUMN)
    return text if column is None else f"{text} (of {column})"


def name_column(error: BaseException, column: str | None) -> None:
    """Have the texts of `error` say that it is about a value of `column`."""
    vars(error)[_COLUMN] = column


def without_values(error: BaseException) -> BaseException:
    """Return `error`, or a copy of it where its text, or that of a chained error, has values of a
    statement. The copy has the type, the traceback and the chain of `error`; of a database's error
    nothing else but the text.
    """
    return _redacted(error, depth=0, seen={}) or error


def _is_of_database(error: BaseException) -> bool:
    return any(
        cls.__module__.partition(".")[0] in _database_packages for cls in type(error).__mro__
    )


def _of_database(error: BaseException) -> str:
    # The first argument, since the text of a StatementError may begin with hints and ends in the
    # statement, with a repr of values.
    told = str(error.args[0] if isinstance(error, StatementError) and error.args else error)
    first = told.partition("\n")[0]
    classes = _CLASSES.match(first)
    front = classes.group() if classes else ""
    text = first[len(front) :]
    if (
        isinstance(error, StatementError)
        and not isinstance(error, DBAPIError)
        and not (error.orig is not None and _is_of_database(error.orig))
    ):
        text = _vague(text)
    elif _sqlstate(error).startswith(_DATA_ERRORS):
        text = text.partition(": ")[0]
    return (front + _ARGUMENT.sub(r"\1", text)).strip()


def _sqlstate(error: BaseException) -> str:
    codes = (
        getattr(of, name, None)
        for of in (error, getattr(error, "orig", None))
        for name in ("sqlstate", "pgcode")
    )
    return next((code for code in codes if isinstance(code, str)), "")


def _vague(text: str) -> str:
    return _VALUES.split(text, 1)[0].strip()


_Seen = dict[tuple[int, bool], BaseException | None]
"""Copies of errors that were looked at, by id and by whether below a database's error: a member of
a group is mostly its context as well, and a nest of groups would double with each level.
"""


def _redacted(
    error: BaseException | None, *, depth: int, seen: _Seen, is_below: bool = False
) -> BaseException | None:
    """Return `error` itself if there is nothing to cut; `is_below` an error of a database."""
    if error is None or depth >= CHAINED_MAX:
        return None
    key = (id(error), is_below)
    if key not in seen:
        if len(seen) >= LOOKED_AT_MAX:
            return None
        seen[key] = None  # one that is chained to itself ends here
        seen[key] = _cut(error, depth=depth + 1, seen=seen, is_below=is_below)
    return seen[key]


def _cut(error: BaseException, *, depth: int, seen: _Seen, is_below: bool) -> BaseException:
    is_of_database, is_cut_off = _is_of_database(error), error.__suppress_context__
    cause = _redacted(error.__cause__, depth=depth, seen=seen, is_below=is_of_database or is_below)
    context = error.__context__
    context = context if is_cut_off else _redacted(context, depth=depth, seen=seen)
    given = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    members = [_redacted(member, depth=depth, seen=seen) for member in given]
    text = _vague(text_of(error)) if is_below and not is_of_database else text_of(error)
    links = zip(
        (cause, context, *members), (error.__cause__, error.__context__, *given), strict=True
    )
    if text == str(error) and all(link is before for link, before in links):
        return error
    copy = _copy(error, text, [member for member in members if member is not None])
    copy.__cause__, copy.__context__ = cause, None if is_cut_off else context
    copy.__suppress_context__, copy.__traceback__ = is_cut_off, error.__traceback__
    return copy


def _copy(error: BaseException, text: str, members: list[BaseException]) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        # There is no group without members; made from its arguments, it would have those that are
        # left out.
        return error.derive(members) if members else _stand_in(error, text)
    is_of_database, cls = _is_of_database(error), type(error)
    try:
        copy = cls.__new__(cls, text) if is_of_database else cls.__new__(cls, *error.args)
        if not is_of_database:
            vars(copy).update(vars(error))
        elif isinstance(copy, StatementError):
            copy.code, copy.detail, copy.hide_parameters = None, [], True
        return copy if str(copy) == text else _stand_in(error, text)
    # An error's type may be the host's, and refuse to be made like this.
    except Exception:  # noqa: BLE001
        return _stand_in(error, text)


def _stand_in(error: BaseException, text: str) -> BaseException:
    """Return an error that looks like `error` wherever it is printed."""
    cls, base = type(error), Exception if isinstance(error, Exception) else BaseException
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    stand_in = cast("BaseException", type(cls.__name__, (base,), names)(text))
    stand_in.__traceback__ = error.__traceback__
    return stand_in
