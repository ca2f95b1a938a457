"""``rowlock check``: what is to be mended in the database, and the migration that mends it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.insight.checking.finding import Findings
from rowlock.insight.checking.migration import migration_text
from rowlock.insight.insight import Insight


@dataclass(frozen=True, slots=True)
class _Migration:
    """The findings as a migration."""

    findings: Findings

    @property
    def needs_person(self) -> bool:
        return self.findings.needs_person

    def text(self, width: int = 100) -> str:
        return migration_text(self.findings.found)

    def to_dict(self) -> dict[str, Any]:
        return self.findings.to_dict() | {"migration": migration_text(self.findings.found)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say what is to be mended in the database: columns and indexes that are missing or harm,"
        " what was left behind in rows, what replicas report. Reads, and writes and locks nothing."
        " Exit code 1: something is BAD."
    )
    parser.add_argument(
        "--migration", action="store_true", help="print the migration that mends it, for Alembic"
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the findings or the migration, and return the exit code."""

    async def ask(insight: Insight) -> Findings | _Migration:
        findings = Findings(await insight.check(), len(insight.pipelines))
        return _Migration(findings) if options.migration else findings

    return answered(options, ask)
