"""The design pages about graphs and streams: the tests that they name exist, and the tables and
texts about graphs say what the code does.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from .drawn_graphs import FOLDER
from .named_tests import NAMED, missing_tests, named_tests, rows_below
from .pages import DOCS
from .way_of_a_value import way_of_a_value

PAGES = ("graph.md", "graph-conformance.md", "streams.md")


@pytest.mark.parametrize("page", PAGES)
def test_tests_were_found(page: str) -> None:
    """The test below would compare nothing."""
    assert len(named_tests(DOCS / "design" / page)) > 20


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page: str) -> None:
    """A page would promise a proof that was renamed, or taken away."""
    assert missing_tests(DOCS / "design" / page) == []


DESIGN = (DOCS / "design" / "graph.md").read_text(encoding="utf-8")


def test_each_rule_has_its_proof() -> None:
    """A rule would stand in the docs that no test keeps."""
    rows = rows_below("rules", DESIGN)
    numbers = [int(row[0]) for row in rows]
    assert numbers == sorted(set(numbers))
    assert set(range(1, 36)) <= set(numbers)
    assert all(NAMED.search(row[2]) for row in rows)


def test_each_rule_of_streams_has_its_proof() -> None:
    """A rule would stand in the docs that no test keeps."""
    rows = rows_below("rules", (DOCS / "design" / "streams.md").read_text(encoding="utf-8"))
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert all("::test_" in row[2] for row in rows)


def test_way_of_a_value_is_the_library_s() -> None:
    """A reader would learn an order of events that is not that of the code."""
    shown = [tuple(row[1:5]) for row in rows_below("one-value", DESIGN)]
    assert shown == [(step.node, step.answer, *step.flags) for step in way_of_a_value()]


def value_of(name: str) -> Any:
    """Return a constant of the wing, or the default of a parameter: ``module.function(name)``."""
    path, _, parameter = name.removesuffix(")").partition("(")
    module, *rest = re.split(r"\.(?=[A-Z])", path, maxsplit=1)
    found: Any = import_module(f"rowlock.graph.{module}")
    for part in rest[0].split("."):
        found = getattr(found, part)
    return inspect.signature(found).parameters[parameter].default if parameter else found


@pytest.mark.parametrize("row", rows_below("bounds", DESIGN), ids=lambda row: row[0])
def test_bound_is_that_of_the_code(row: list[str]) -> None:
    """A host would plan with another bound than it has."""
    assert value_of(row[2].strip("`")) == float(row[1].replace(",", ""))


def test_deadlock_is_the_one_that_is_drawn() -> None:
    """The page would explain another report than the library writes."""
    assert (FOLDER / "deadlock.txt").read_text(encoding="utf-8") in DESIGN
