"""Values of rows as people read them: no control character reaches a terminal or a page, nothing is
longer than a line, and times are words.

The one idea: the content of a row comes from other people. An escape sequence in an error would
move the cursor, a newline would forge a line of a log, and a bidirectional override would turn a
text around; so each of them is shown as what it is.
"""

from __future__ import annotations

import shlex
import textwrap
import unicodedata
from datetime import UTC, datetime
from typing import Final

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
    """Return such as ``14 s ago``."""
    return "now" if seconds < 1 else f"{duration(seconds)} ago"


def ahead(seconds: float) -> str:
    """Return such as ``in 14 s``."""
    return "now" if seconds < 1 else f"in {duration(seconds)}"


def about(seconds: float) -> str:
    """Return such as ``about 14 s``."""
    return "in a moment" if seconds < 1 else f"about {duration(seconds)}"


def lasting(seconds: float) -> str:
    """Return such as ``for 14 s``."""
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


def ordinal(number: int) -> str:
    """Return such as ``118th``."""
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
