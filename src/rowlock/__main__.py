"""The command line: ``python -m rowlock COMMAND``, or ``rowlock COMMAND`` once installed.

Each command is a module with `add_arguments` and `run`. Exit codes: 0 all is well, 1 it is not, 2
wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from rowlock.cli import explain_error, run_file
from rowlock.demo import command as demo


class Command(Protocol):
    """What is asked of a module that is a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments that `run` reads."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it, and return the exit code."""
        ...


COMMANDS: dict[str, tuple[Command, str]] = {
    "demo": (demo, "catalogue a folder with several replicas, one of them killed half-way"),
    "errors": (explain_error, "say what an error means and what to change"),
    "run": (run_file, "run a program in which await may stand at the top, such as a page's"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code.

    Raises:
        SystemExit: argparse has answered already, with code 0 for help and 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="rowlock", description="Background pipelines over your own SQLAlchemy rows."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (command, summary) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
