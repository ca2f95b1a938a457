"""The tables of faults cannot rot: every test that they name is there, and every fault has one,
or says why it has none.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from .reading import ROOT

PAGE = ROOT / "docs" / "design" / "reliability.md"
TEST_COLUMN = 2
_NAMED = re.compile(r"`tests/(?P<file>(?:\w+/)+test_\w+\.py)(?:::(?P<test>\w+))?`")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of every line of a table whose header is that of a table of faults."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|")
            else []
        )
        if cells[:3] == ["fault", "expected", "test"]:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(line) <= set("|-: "):
            rows.append(cells)
    return rows


@lru_cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the tests of a file below ``tests/``; none if there is no such file."""
    path = ROOT / "tests" / file
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def dead_tests(text: str) -> list[str]:
    """Find tests that a page names and that are not there."""
    named = [(found["file"], found["test"]) for found in _NAMED.finditer(text)]
    return [
        f"{file}::{test}"
        for file, test in named
        if not functions_of(file) or (test and test not in functions_of(file))
    ]


def untested(text: str) -> list[str]:
    """Find faults that name no test and do not say why."""
    return [
        cells[0]
        for cells in rows_of(text)
        if not _NAMED.search(cells[TEST_COLUMN]) and not cells[TEST_COLUMN].startswith("none: ")
    ]


@pytest.mark.parametrize("page", [PAGE, PAGE.with_name("windows.md")])
def test_named_tests_exist(page: Path) -> None:
    """A promise would be shown as tested by a test that was renamed or taken out."""
    assert dead_tests(page.read_text(encoding="utf-8")) == []


def test_every_fault_has_a_test() -> None:
    """A fault would stand in the table because somebody has thought of it once."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(rows_of(text)) > 50
    assert untested(text) == []


HEADER = "| fault | expected | test | found |\n|---|---|---|---|\n"


@pytest.mark.parametrize(
    "name",
    ["tidy/test_reliability_page.py::test_gone", "tidy/test_gone.py::test_it", "x/test_y.py"],
)
def test_planted_dead_test(name: str) -> None:
    """The check above would pass any name."""
    assert len(dead_tests(f"{HEADER}| a | b | `tests/{name}` | |")) == 1


def test_planted_fault_without_a_test() -> None:
    """The check above would pass a row without a test."""
    assert untested(f"{HEADER}| a | b | soon | |\n| c | d | none: it cannot be had | |") == ["a"]
