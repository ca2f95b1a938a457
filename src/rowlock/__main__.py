"""The command line: ``python -m rowlock COMMAND``, or ``rowlock COMMAND`` once installed.

Each command is a module with `add_arguments` and `run`, imported when it is asked for. Exit codes:
0 all is well, 1 it is not, 2 wrong usage; more of them in ``cli/answering.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Protocol, TextIO, cast


class Command(Protocol):
    """What is asked of a module that is a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments that `run` reads."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it, and return the exit code."""
        ...


COMPLETION = "completion"
COMMANDS: dict[str, tuple[str, str]] = {
    "check": (
        "rowlock.cli.asking.check",
        "say what is to be mended in the database, and write the migration",
    ),
    COMPLETION: ("rowlock.cli.asking.completion", "print what a shell needs to complete this"),
    "dashboard": ("rowlock.cli.windows.dashboard", "serve the dashboard to a browser here"),
    "demo": (
        "rowlock.demo.command",
        "catalogue a folder with several replicas, one of them killed half-way",
    ),
    "due": ("rowlock.cli.due", "make a row due now"),
    "errors": ("rowlock.cli.explain_error", "say what an error means and what to change"),
    "explain": ("rowlock.cli.explain", "say why a row or a pipeline waits, or who works on it"),
    "export": (
        "rowlock.cli.shipped.export",
        "print the dashboard for Grafana, or the alerts for Prometheus",
    ),
    "mcp": ("rowlock.cli.asking.mcp", "let an assistant ask, over stdin and stdout"),
    "park": ("rowlock.cli.park", "set a row aside until it is put back"),
    "pause": ("rowlock.cli.pause", "have a pipeline claim nothing, anywhere"),
    "plan": ("rowlock.cli.asking.plan", "say what would come of rows, without writing it"),
    "release": ("rowlock.cli.release", "free a row whose holder is gone"),
    "resume": ("rowlock.cli.resume", "end the pause of a pipeline"),
    "replicas": ("rowlock.cli.replicas", "list the replicas, as they say themselves"),
    "rows": ("rowlock.cli.windows.rows", "list the rows of one state, a page of them"),
    "run": (
        "rowlock.cli.run_file",
        "run a program in which await may stand at the top, such as a page's",
    ),
    "status": ("rowlock.cli.status", "say whether anything waits too long"),
    "timeline": ("rowlock.cli.asking.timeline", "say what happened to a row"),
    "top": ("rowlock.cli.top.command", "show the status as a picture that keeps itself new"),
    "unpark": ("rowlock.cli.unpark", "put a parked row back"),
}
"""The module of each command, and what it does in a line."""


def command_parser(named: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of all command lines; only commands that are `named` have arguments, and
    only their modules are imported.
    """
    parser = argparse.ArgumentParser(
        prog="rowlock", description="Background pipelines over your own SQLAlchemy rows."
    )
    parser.set_defaults(whole_parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    if COMPLETION in named:
        named = tuple(COMMANDS)
    for name, (module, summary) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary)
        if name in named:
            command = cast("Command", import_module(module))
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code.

    Raises:
        SystemExit: argparse has answered already, with code 0 for help and 2 for wrong usage.
    """
    words = sys.argv[1:] if argv is None else argv
    stdout: TextIO | None = sys.stdout
    if stdout is None:
        # The shell has closed it: what is printed goes nowhere, and the exit code says the rest.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    options = command_parser(words).parse_args(words)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
