"""Tests that the design pages name as proofs, and the tables in which they do so."""

from __future__ import annotations

import re
from pathlib import Path

from .pages import ROOT

NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def named_tests(page: Path) -> list[tuple[str, str]]:
    """Return file and test, for each test that a page names."""
    return NAMED.findall(page.read_text(encoding="utf-8"))


def missing_tests(page: Path) -> list[str]:
    """Return what a page names and is not there."""
    missing = []
    for file, name in named_tests(page):
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not re.search(rf"^\s*(?:async )?def {name}\(", text, re.MULTILINE):
            missing.append(f"{file}::{name}")
    return missing


def rows_below(anchor: str, text: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    below = text[text.index(f"{{ #{anchor} }}") :].splitlines()
    first = next(at for at, line in enumerate(below) if line.startswith("|"))
    rows = []
    for line in below[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows
