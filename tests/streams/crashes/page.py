"""Makes the table of the docs of what the crash matrix has tried: ``python -m
tests.streams.crashes.page FILE``, with the file that its runs have written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from .matrix import ACTS
from .stories import STORIES

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/design/streams-conformance.md"
DATABASES: Final = ("sqlite", "postgresql")
NOT_TRIED: Final = "not tried"
_TABLE: Final = re.compile(r"^\| story \|.*\n(?:\|.*\n)*", re.MULTILINE)
_HEAD: Final = (
    "| story | what is cut short | dies: SQLite | PostgreSQL | freezes: SQLite | PostgreSQL"
    " | loses its connection: SQLite | PostgreSQL | result |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)

Cells = Mapping[tuple[str, str, str], tuple[str, str]]
"""What was tried and what came of it, by story, act and database."""


def cells_of(lines: Iterable[str]) -> Cells:
    """Return what the lines of a run say; the last one of a story, act and database counts."""
    cells = {}
    for line in lines:
        story, act, database, tried, overtaken, lost, result = line.strip().split(" | ", 6)
        more = {"freeze": overtaken, "lose": lost}.get(act)
        cells[story, act, database] = (tried if more is None else f"{tried} ({more})", result)
    return cells


def table_of(cells: Cells) -> str:
    """Return the table, a line for each story; some may not be tried.

    Raises:
        ValueError: a story was not tried at all, or came out otherwise somewhere.
    """
    rows = []
    for name, story in STORIES.items():
        keys = [(name, act, database) for act in ACTS for database in DATABASES]
        (result,) = {cells[key][1] for key in keys if key in cells}
        tried = [cells[key][0] if key in cells else NOT_TRIED for key in keys]
        rows.append(" | ".join([name, story.about, *tried, result]))
    return _HEAD + "".join(f"| {row} |\n" for row in rows)


def with_table(page: str, table: str) -> str:
    return _TABLE.sub(lambda _: table, page, count=1)


if __name__ == "__main__":
    run = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table_of(cells_of(run))), "utf-8")
