"""Commands for people who run a host, ``python -m rowlock COMMAND``; and how their text reaches a
terminal: plain, and with rich a little bolder.

The one idea: rich embellishes and is never needed. Where the output is no terminal, or NO_COLOR or
a dumb terminal says so, not one escape sequence is printed.

Not here: the demo, which is a program of its own (``demo/``), and how a command line is read
(``__main__.py``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from rowlock.errors import describe

FILE_WIDTH: Final = 100  # columns where the output is no terminal
WIDTH_MIN: Final = 40
_LOUD: Final = re.compile(r"^(?:[A-Z]{2,}(?: [A-Z]{2,})*\b|! ).*$", re.MULTILINE)
"""Lines that begin with a verdict, or with what is to be mended."""
_LABEL: Final = re.compile(r"^(?:why|do|also|more) ", re.MULTILINE)


def width() -> int:
    if not sys.stdout.isatty():
        return FILE_WIDTH
    return max(WIDTH_MIN, shutil.get_terminal_size((FILE_WIDTH, 24)).columns)


def handed_over(write_answer: Callable[[], None], code: int, *, unwritten: int) -> int:
    """Write an answer; return `code` if that was done, or nobody reads on, else `unwritten`."""
    try:
        write_answer()
    except OSError as error:
        # What Python would still write at its end is lost, too.
        sys.stdout = None
        if isinstance(error, BrokenPipeError):
            return code
        print(f"rowlock: the answer could not be written: {describe(error)}", file=sys.stderr)
        return unwritten
    return code


def print_text(text: str, *, is_plain: bool) -> None:
    if is_plain or not may_embellish() or not is_printable(text) or not _printed_by_rich(text):
        write(text)


def write(text: str) -> None:
    """Print a text at once; characters that the output's encoding lacks as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def write_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, in ASCII if the output's encoding lacks a character of it."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    write(text if is_printable(text) else json.dumps(document, indent=2))


def is_printable(text: str) -> bool:
    """Whether the output's encoding has all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def may_embellish() -> bool:
    """Whether the output is a terminal with escape sequences, and they are not refused."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") not in {"dumb", ""}
    )


def _printed_by_rich(text: str) -> bool:
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    styled = Text(text)
    for pattern, style in ((_LOUD, "bold"), (_LABEL, "dim")):
        for found in pattern.finditer(text):
            styled.stylize(style, found.start(), found.end())
    Console(highlight=False, soft_wrap=True, markup=False).print(styled)
    return True
