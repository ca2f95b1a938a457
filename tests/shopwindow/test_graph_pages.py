"""The design pages about graphs: the tests that they name exist, and their tables and texts say
what the code does.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from .drawn_graphs import FOLDER
from .pages import DOCS, ROOT
from .way_of_a_value import way_of_a_value

PAGES = ("graph.md", "graph-conformance.md")
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def named_tests() -> list[tuple[str, str, str]]:
    """Return page, file and test, for each test that a page names."""
    return [
        (page, file, name)
        for page in PAGES
        for file, name in NAMED.findall((DOCS / "design" / page).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_tests_were_found(page: str) -> None:
    """The test below would compare nothing."""
    assert len([one for one in named_tests() if one[0] == page]) > 20


def test_named_tests_exist() -> None:
    """A page would promise a proof that was renamed, or taken away."""
    missing = []
    for page, file, name in named_tests():
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not re.search(rf"^\s*(?:async )?def {name}\(", text, re.MULTILINE):
            missing.append(f"{page}: {file}::{name}")
    assert missing == []


DESIGN = (DOCS / "design" / "graph.md").read_text(encoding="utf-8")


def rows_below(anchor: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    below = DESIGN[DESIGN.index(f"{{ #{anchor} }}") :].splitlines()
    first = next(at for at, line in enumerate(below) if line.startswith("|"))
    rows = []
    for line in below[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def test_each_rule_has_its_proof() -> None:
    """A rule would stand in the docs that no test keeps."""
    rows = rows_below("rules")
    numbers = [int(row[0]) for row in rows]
    assert numbers == sorted(set(numbers))
    assert set(range(1, 36)) <= set(numbers)
    assert all(NAMED.search(row[2]) for row in rows)


def test_way_of_a_value_is_the_library_s() -> None:
    """A reader would learn an order of events that is not that of the code."""
    shown = [tuple(row[1:5]) for row in rows_below("one-value")]
    assert shown == [(step.node, step.answer, *step.flags) for step in way_of_a_value()]


def value_of(name: str) -> Any:
    """Return a constant of the wing, or the default of a parameter: ``module.function(name)``."""
    path, _, parameter = name.removesuffix(")").partition("(")
    module, *rest = re.split(r"\.(?=[A-Z])", path, maxsplit=1)
    found: Any = import_module(f"rowlock.graph.{module}")
    for part in rest[0].split("."):
        found = getattr(found, part)
    return inspect.signature(found).parameters[parameter].default if parameter else found


@pytest.mark.parametrize("row", rows_below("bounds"), ids=lambda row: row[0])
def test_bound_is_that_of_the_code(row: list[str]) -> None:
    """A host would plan with another bound than it has."""
    assert value_of(row[2].strip("`")) == float(row[1].replace(",", ""))


def test_deadlock_is_the_one_that_is_drawn() -> None:
    """The page would explain another report than the library writes."""
    assert (FOLDER / "deadlock.txt").read_text(encoding="utf-8") in DESIGN
