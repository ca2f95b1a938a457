"""Values of rows as people read and type them: no control character reaches a terminal or a page,
nothing is longer than a line, times are words, and the text of a key is read by the type of its
column.

The one idea: the content of a row comes from other people. An escape sequence in an error would
move the cursor, a newline would forge a line of a log, and a bidirectional override would turn a
text around; so each of them is shown as what it is. And a key that cannot be one is refused before
the database is asked: what it says of a value of another type would look like a fault of the
pipeline.
"""

from __future__ import annotations

import shlex
import textwrap
import unicodedata
import uuid
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeGuard, cast

from sqlalchemy import Enum as EnumType
from sqlalchemy import Uuid
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock import UtcDateTime
from rowlock.errors import AppError
from rowlock.spi import LeasedTable

CHARS_MAX: Final = 200
WIDTH_MIN: Final = 40  # texts are never narrower, whatever the terminal is
_HIDDEN_KINDS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of what moves, hides or turns around: controls, formats, surrogates, private
and unassigned ones, separators of lines.
"""
_FORMS: Final = ((2, "x"), (4, "u"), (8, "U"))
"""Of an escaped character: how many hexadecimal digits, behind which letter."""
TEENS: Final = range(11, 14)  # they end in `th`, whatever their last digit
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
REASON: Final = '--reason "..."'  # of a command, what the person fills in


def shown(value: object, chars_max: int = CHARS_MAX) -> str:
    """Return `value` as one line of visible characters, `chars_max` of them at most."""
    # Cut first: what is to be escaped may be a megabyte.
    text = str(value)[: chars_max + 1]
    if len(text) <= chars_max and text.isascii() and text.isprintable():
        return text
    text = "".join(visible(character) for character in text)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def visible(character: str) -> str:
    """Return a character as itself, or as its escape if it moves, hides or turns others around."""
    if character.isascii() and character.isprintable():
        return character
    if unicodedata.category(character) not in _HIDDEN_KINDS:
        return character
    digits = f"{ord(character):x}"
    width, letter = next(form for form in _FORMS if len(digits) <= form[0])
    return f"\\{letter}{digits.rjust(width, '0')}"


def duration(seconds: float) -> str:
    """Return a duration in one unit; ``now`` below one second."""
    if seconds < 1:
        return "now"
    if seconds < 2 * _MINUTE_S:
        return f"{int(seconds)} s"
    if seconds < 2 * _HOUR_S:
        return f"{int(seconds // _MINUTE_S)} min"
    if seconds < 2 * _DAY_S:
        return f"{int(seconds // _HOUR_S)} h"
    return f"{int(seconds // _DAY_S):,} d"


def ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{duration(seconds)} ago"


def ahead(seconds: float) -> str:
    return "now" if seconds < 1 else f"in {duration(seconds)}"


def about(seconds: float) -> str:
    return "in a moment" if seconds < 1 else f"about {duration(seconds)}"


def lasting(seconds: float) -> str:
    return "now" if seconds < 1 else f"for {duration(seconds)}"


def clock_time(time: datetime, *, now: datetime) -> str:
    """Return a time of the day in UTC, with its date if that is not the one of `now`."""
    utc = time.astimezone(UTC)
    if utc.date() == now.astimezone(UTC).date():
        return f"{utc:%H:%M:%S}"
    return f"{utc:%Y-%m-%d %H:%M:%S}"


def by_the_database(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, by the database"


def wrapped(text: str, label: str, width: int, *, indent: int | None = None) -> list[str]:
    """Wrap a text behind its label; further lines are indented as far as that, or by `indent`."""
    further = " " * (len(label) if indent is None else min(len(label), indent))
    lines = textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=further, break_on_hyphens=False
    )
    return lines or [label.rstrip()]


def named_first(names: Sequence[str], most: int) -> str:
    """Return the first `most` of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def table_text(rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Lay rows out as columns of text; those whose number is in `right` are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def ordinal(number: int) -> str:
    endings = {} if number % 100 in TEENS else {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{endings.get(number % 10, 'th')}"


def iso(time: datetime | None) -> str | None:
    """Return a time as JSON has it: ISO 8601 in UTC, ending in ``Z``."""
    return None if time is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def typed_word(text: str) -> str:
    """Return a text as one word of a shell; in ``$'...'`` of bash and zsh, if it needs escapes."""
    escaped = "".join(visible(character) for character in text)
    if escaped == text:
        return shlex.quote(text)
    quoted = "".join(
        visible(character) if visible(character) != character else _escaped(character)
        for character in text
    )
    return f"$'{quoted}'"


def sql_text(text: str) -> str:
    """Return a text as a literal of PostgreSQL, hidden characters as escapes."""
    if all(visible(character) == character for character in text):
        return "'" + text.replace("'", "''") + "'"
    return "E'" + "".join(map(_escaped_in_sql, text)) + "'"


def _escaped_in_sql(character: str) -> str:
    if visible(character) == character:
        return _escaped(character)
    # The shorter forms do not reach every character, or are bytes.
    return f"\\U{ord(character):08x}"


def _escaped(character: str) -> str:
    return f"\\{character}" if character in "\\'" else character


def row_command(verb: str, model: str, key: str, *options: str) -> str:
    """Return a command about a row; a key that looks like an option stands behind ``--``."""
    words = [typed_word(model), typed_word(key)]
    if key.startswith("-"):
        return " ".join(["rowlock", verb, *options, "--", *words])
    return " ".join(["rowlock", verb, *words, *options])


def pipeline_command(verb: str, pipeline: str, *options: str) -> str:
    return " ".join(["rowlock", verb, typed_word(pipeline), *options])


def made_by(pipeline: str) -> str:
    """Return the call that makes a pipeline: of its class, or for a flow's, of its streams."""
    return f"{pipeline}()" if pipeline.isidentifier() else "streams.pipelines()"


# ---------------------------------------------------------------- keys as people type them


ENUMS_NAMED: Final = 10  # how many values of an enumeration are named
INTEGER_MAX: Final = 2**63 - 1  # largest number that a key can be


def read_key(leased: LeasedTable, given: object) -> Any:
    """Return the key that is meant, text by the type of the key; raises AppError if it is none."""
    kind = leased.key.type
    for key in _keys_of_text(kind, given) if isinstance(given, str) else (given,):
        if _may_be_key(kind, key):
            return key
    what = f"its {leased.key.name} is {_what_it_is(kind)}"
    raise AppError(f"{shown(given)} is no key of {leased.name}: {what}")


def _keys_of_text(kind: TypeEngine[Any], text: str) -> Iterator[Any]:
    # A shell hands on bytes that are no UTF-8 as surrogates.
    if "\x00" in text or any("\ud800" <= each <= "\udfff" for each in text):
        return
    readers = [_reader_of(kind, _class_of(kind))]
    if _binds_itself(kind):
        # What its values are is the host's to know; that of their storage was the best guess.
        readers += [str, uuid.UUID]
    for reader in readers:
        # Of the host's own types whatever they raise.
        with suppress(Exception):
            value = reader(text)
            if _binds_itself(kind):
                kind.process_bind_param(value, DefaultDialect())
            yield value


def _may_be_key(kind: TypeEngine[Any], value: object) -> bool:
    """Whether `value` can be a key; of a host's type the database decides."""
    value_class = _class_of(kind)
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        return False
    if _binds_itself(kind) or value_class not in _STRICT:
        return True
    return isinstance(value, value_class) and (value_class is bool or not isinstance(value, bool))


def _class_of(kind: TypeEngine[Any]) -> type[Any]:
    if isinstance(kind, TypeDecorator):
        return _class_of(kind.impl_instance)
    try:
        found: type[Any] = kind.python_type
    except NotImplementedError:
        return str
    return found


def _what_it_is(kind: TypeEngine[Any]) -> str:
    """Return what a key of such a column is, in words."""
    value_class, names = _class_of(kind), _names_of(kind)
    if names:
        more = ", ..." if len(names) > ENUMS_NAMED else ""
        return f"one of {', '.join(names[:ENUMS_NAMED])}{more}"
    if isinstance(kind, Uuid):
        return "a UUID"
    if value_class is str and isinstance(kind, TypeDecorator):
        return f"a {type(kind).__name__} that no text gives"
    return _READERS.get(value_class, (str, "text"))[1]


def _reader_of(kind: TypeEngine[Any], value_class: type[Any]) -> Callable[[str], Any]:
    if issubclass(value_class, Enum):
        # It is shown as `Kind.name`.
        return lambda text: value_class[text.rpartition(".")[2]]
    names = _names_of(kind)
    if names:
        return lambda text: names[names.index(text)]
    if isinstance(kind, Uuid) and value_class is str:
        return lambda text: str(uuid.UUID(text))
    if value_class is datetime:
        return lambda text: _zoned(kind, datetime.fromisoformat(text))
    return _READERS.get(value_class, (str, ""))[0]


def _zoned(kind: TypeEngine[Any], time: datetime) -> datetime:
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return utc if getattr(kind, "timezone", False) else utc.replace(tzinfo=None)


def _binds_itself(kind: TypeEngine[Any]) -> TypeGuard[TypeDecorator[Any]]:
    # Ours asks which database it is, and takes what was read as a time.
    is_host_type = isinstance(kind, TypeDecorator) and not isinstance(kind, UtcDateTime)
    cls, plain = cast("Any", type(kind)), cast("Any", TypeDecorator)
    return is_host_type and cls.process_bind_param is not plain.process_bind_param


def _names_of(kind: TypeEngine[Any]) -> list[str]:
    return [str(name) for name in kind.enums] if isinstance(kind, EnumType) else []


def _bytes(text: str) -> bytes:
    found = literal_eval(text)
    if not isinstance(found, bytes):
        raise TypeError(text)
    return found


_READERS: Final[Mapping[type[Any], tuple[Callable[[str], Any], str]]] = {
    int: (int, "a whole number"),
    uuid.UUID: (uuid.UUID, "a UUID"),
    Decimal: (Decimal, "a number"),
    float: (float, "a number"),
    date: (date.fromisoformat, "a date, such as 2026-11-22"),
    datetime: (datetime.fromisoformat, "a time, such as 2026-11-22T03:14:05+00:00"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    bytes: (_bytes, "bytes, such as b'key'"),
}
"""How keys of a class are read, and what they are in words."""
_STRICT: Final = _READERS.keys() - {Decimal, float}
"""Classes of keys for which drivers take nothing else."""
