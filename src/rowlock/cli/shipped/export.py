"""``rowlock export WHAT``: files of the package, for tools that read them."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from typing import Final

FILES: Final = {"alerts": "alerts.yaml", "grafana": "rowlock.json"}
"""What can be exported, and its file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Print the dashboard for Grafana, or the alerts for Prometheus (for rule_files). Asks no"
        " database and needs no app."
    )
    parser.add_argument("what", metavar="WHAT", choices=sorted(FILES), help=" or ".join(FILES))


def run(options: argparse.Namespace) -> int:
    """Print the file, and return the exit code."""
    sys.stdout.write(text_of(options.what))
    return 0


def text_of(what: str) -> str:
    """Return the text of one of `FILES`."""
    folder = files("rowlock.telemetry").joinpath("grafana")
    return folder.joinpath(FILES[what]).read_text(encoding="utf-8")
