"""The command line: ``python -m rowlock COMMAND``, or ``rowlock COMMAND`` once installed.

Each command is two functions, such as `add_status_arguments` and `run_status`, of a module that is
imported when one of its commands is asked for. Exit codes: 0 all is well, 1 it is not, 2 wrong
usage; more of them in ``cli/answering.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import TextIO

COMPLETION = "completion"
COMMANDS: dict[str, tuple[str, str]] = {
    "check": (
        "rowlock.cli.commands",
        "say what is to be mended in the database, and write the migration",
    ),
    COMPLETION: ("rowlock.cli.without_app", "print what a shell needs to complete this"),
    "dashboard": ("rowlock.cli.windows", "serve the dashboard to a browser here"),
    "demo": (
        "rowlock.demo.command",
        "catalogue a folder with several replicas, one of them killed half-way",
    ),
    "due": ("rowlock.cli.commands", "make a row due now"),
    "errors": ("rowlock.cli.without_app", "say what an error means and what to change"),
    "explain": ("rowlock.cli.commands", "say why a row or a pipeline waits, or who works on it"),
    "export": (
        "rowlock.cli.without_app",
        "print the dashboard for Grafana, or the alerts for Prometheus",
    ),
    "mcp": ("rowlock.cli.windows", "let an assistant ask, over stdin and stdout"),
    "park": ("rowlock.cli.commands", "set a row aside until it is put back"),
    "pause": ("rowlock.cli.commands", "have a pipeline claim nothing, anywhere"),
    "plan": ("rowlock.cli.commands", "say what would come of rows, without writing it"),
    "release": ("rowlock.cli.commands", "free a row whose holder is gone"),
    "resume": ("rowlock.cli.commands", "end the pause of a pipeline"),
    "replicas": ("rowlock.cli.commands", "list the replicas, as they say themselves"),
    "rows": ("rowlock.cli.commands", "list the rows of one state, a page of them"),
    "run": (
        "rowlock.cli.without_app",
        "run a program in which await may stand at the top, such as a page's",
    ),
    "status": ("rowlock.cli.commands", "say whether anything waits too long"),
    "timeline": ("rowlock.cli.commands", "say what happened to a row"),
    "top": ("rowlock.cli.windows", "show the status as a picture that keeps itself new"),
    "unpark": ("rowlock.cli.commands", "put a parked row back"),
}
"""The module of each command, and what it does in a line."""


def command_parser(named: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of all command lines; only the modules of commands that are `named` are
    imported, and only these have arguments.
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
            functions = import_module(module)
            getattr(functions, f"add_{name}_arguments")(subparser)
            subparser.set_defaults(run=getattr(functions, f"run_{name}"))
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
