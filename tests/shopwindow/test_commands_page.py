"""``docs/reference/commands.md``: each command with its options, made of the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

import pytest

from rowlock.__main__ import COMMANDS, command_parser
from rowlock.cli.answering import INTERRUPTED, MISUSED, NEEDS_PERSON, NO_DATABASE, NO_SUCH_ROW, WELL

from .pages import DOCS

PAGE: Final = DOCS / "reference" / "commands.md"
BEGIN: Final = f"""\
# Commands

`python -m rowlock COMMAND`, or `rowlock COMMAND` once installed; `--help` prints what stands here.
The plain install has all commands. One that needs an extra says so in a line, with the command that
installs it.

| exit code | of commands about rows |
|---|---|
| {WELL} | all is well |
| {NEEDS_PERSON} | a person is needed |
| {MISUSED} | wrong usage, no app that opens, or an extra is missing |
| {NO_DATABASE} | no answer from the database within 10 s: from none, of several, or not \
from the one that was asked about |
| {NO_SUCH_ROW} | no such row; its lease has not ended and nothing was forced; it has changed |
| {INTERRUPTED} | interrupted |

Code of the app that goes on behind the answer, such as a task that ignores its cancellation or a
thread that hangs, has 5 s; then the command ends without it.
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    [action] = [
        one
        for one in command_parser(tuple(COMMANDS))._actions
        if isinstance(one, argparse._SubParsersAction)
    ]
    return {name: action.choices[name] for name in COMMANDS}


def page() -> str:
    return "\n".join([BEGIN, *("\n".join(section(*one)) for one in parsers().items())])


def section(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    summary = COMMANDS[name][1]
    yield f"## `{name}`\n"
    told = " ".join((parser.description or f"{summary[0].upper()}{summary[1:]}.").split())
    yield f"{told}\n"
    yield "| argument | meaning |\n|---|---|"
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and action.dest != "help":
            yield f"| `{_named(action)}` | {_help_of(action)} |"
    yield ""


def _named(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return str(value)
    return f"{', '.join(action.option_strings)}{f' {value}' if action.nargs != 0 else ''}"


def _help_of(action: argparse.Action) -> str:
    given = {"default": action.default, "choices": action.choices, "prog": "rowlock"}
    text = (action.help or "").replace("%%", "\0")
    filled = re.sub(r"%\((\w+)\)s", lambda found: str(given.get(found[1], "")), text)
    return " ".join(filled.replace("\0", "%").replace("|", "\\|").split())


def test_the_page_is_made_of_the_parsers(pytestconfig: pytest.Config) -> None:
    """A person would type an option that there is no more, or never hear of one."""
    if pytestconfig.getoption("--renew-pages"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_explained(name: str) -> None:
    """A person would have to try what an option does."""
    assert not [one.dest for one in parsers()[name]._actions if not one.help]
