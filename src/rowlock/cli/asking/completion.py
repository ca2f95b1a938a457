"""``rowlock completion SHELL``: what a shell needs to complete the command line."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rowlock.cli import paper
from rowlock.cli.answering import MISUSED, WELL

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
NEEDS_EXTRA: Final = 'it needs an extra: python -m pip install "rowlock[cli]"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Print what a shell needs to complete the command line, such as: eval"
        ' "$(rowlock completion bash)"'
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print it, and return the exit code."""
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ImportError:
        print(f"rowlock completion: {NEEDS_EXTRA}", file=sys.stderr)
        return MISUSED
    script = shtab.complete(options.whole_parser, options.shell)
    return paper.handed_over(lambda: paper.write(script), WELL, unwritten=MISUSED)
