"""``docs/reference/errors.md`` has the whole tree, with the functions that raise each error."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from rowlock import errors, stream_errors
from rowlock.errors import Refusal, RowlockError
from rowlock.insight import steering

from .pages import DOCS, ROOT, blocks_of

PAGE = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
PUBLIC = (
    "rowlock",
    "rowlock.dispatch",
    "rowlock.dispatch.migrations",
    "rowlock.graph",
    "rowlock.insight",
    "rowlock.rows.indexes",
    "rowlock.migrations",
)
"""Modules from which a host imports."""
_SECTION = re.compile(r"^Raises:\n(?P<items>(?:[ \n].*(?:\n|$)|\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(?P<name>\w+):", re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<second>.*) \| (?P<third>.*) \|$", re.MULTILINE)
_OUTSIDE = re.compile(r"^class (?P<name>[A-Z]\w*(?:Error|Exception))\(", re.MULTILINE)
_NAMES = {**vars(errors), **vars(stream_errors), **vars(steering)}
_TYPES = {name: one for name, one in _NAMES.items() if isinstance(one, type)}
CLASSES = {name: one for name, one in _TYPES.items() if issubclass(one, RowlockError)}


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def branches(of: type, before: str = "") -> Iterator[str]:
    """Yield the lines of the tree below a class."""
    below = sorted(name for name, one in CLASSES.items() if of in one.__bases__)
    for name in below:
        is_last = name == below[-1]
        yield f"{before}{'└── ' if is_last else '├── '}{name}"
        yield from branches(CLASSES[name], before + ("    " if is_last else "│   "))


def test_tree_is_complete() -> None:
    """A host would catch errors by a tree in which one is missing."""
    drawn = next(blocks_of(PAGE)).text.splitlines()
    assert drawn == ["RowlockError", *branches(RowlockError)]


def raised_by(function: Any) -> set[str]:
    """Return the errors that a docstring names under ``Raises``."""
    found = _SECTION.search(inspect.getdoc(function) or "")
    return set() if found is None else {item["name"] for item in _ITEM.finditer(found["items"])}


def members_of(public: type) -> Iterable[tuple[str, Any]]:
    """Return what a class has, and what `Insight` has of the parts of it that act and plan."""
    parts = (one for one in public.__mro__ if one is public or one.__name__ in PARTS_OF_INSIGHT)
    return [member for part in parts for member in vars(part).items()]


def functions_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what a host calls of a module, classes with their methods, by the names on the page."""
    here = {name: one for name, one in vars(module).items() if not name.startswith("_")}
    own = [name for name, one in here.items() if getattr(one, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", own):
        public = here[name]
        if isinstance(public, type) and issubclass(public, Exception):
            continue
        yield name, public
        for part, value in members_of(public) if isinstance(public, type) else ():
            bare = value.fget if isinstance(value, property) else value
            method = getattr(bare, "__func__", bare)
            if callable(method) and not part.startswith("_"):
                yield f"{name}.{part}", method


def raisers() -> dict[str, set[str]]:
    """Return the functions that raise each error, as their docstrings say."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in map(import_module, PUBLIC):
        for name, function in functions_of(module):
            for error in raised_by(function) & set(CLASSES):
                found[error].add(name)
    return found


PARTS_OF_INSIGHT = ("Actions", "Plans")
RAISERS = raisers()
ROWS = {row["name"]: row for row in _ROW.finditer(section("Raised by"))}


def test_every_error_has_a_row() -> None:
    """A host would not learn where to expect an error."""
    assert sorted(ROWS) == sorted(CLASSES)
    assert {"hold_rows", "PipelineItem.lock_related"} <= RAISERS["LeaseLost"]


@pytest.mark.parametrize("name", CLASSES)
def test_row_is_true(name: str) -> None:
    """A host would catch an error at the wrong call, or try again what fails each time."""
    named = set(re.findall(r"`([\w.]+)`", ROWS[name]["second"]))
    assert named == RAISERS[name]
    if name != "RowlockError":
        assert ROWS[name]["third"].startswith("yes" if issubclass(CLASSES[name], Refusal) else "no")


def attributes_of(error: type) -> set[str]:
    """Return the public attributes that a class of the tree adds."""
    (tree,) = ast.parse(inspect.getsource(error)).body
    assert isinstance(tree, ast.ClassDef)
    properties = {name for name, one in vars(error).items() if isinstance(one, property)}
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    written = {node.attr for node in stored if isinstance(node.ctx, ast.Store)}
    own = {"slug"} if error is RowlockError else set()
    return {name for name in properties | written | own if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_attributes_are_told(name: str) -> None:
    """A host would parse the message for what stands in an attribute."""
    told = section(CLASSES[name].slug).partition("**Attributes:**")[2]
    named = set(re.findall(r"(?:^|; |and |, )`(\w+)`", told.replace("\n", " ").strip()))
    missing = attributes_of(CLASSES[name]) - named
    assert missing == set()
    assert bool(told) == bool(attributes_of(CLASSES[name]))


def outside_of_the_tree() -> dict[str, str]:
    """Return the public exceptions of the package that are not in its tree, with their modules."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for one in _OUTSIDE.finditer(path.read_text(encoding="utf-8")):
            if one["name"] not in CLASSES:
                found[one["name"]] = module
    return found


def test_errors_of_the_testing_tools_are_listed() -> None:
    """A test would fail by an error that no page explains."""
    listed = _ROW.finditer(section("Errors of the testing tools"))
    rows = {row["name"]: row["second"].strip("`") for row in listed}
    assert rows == outside_of_the_tree()
    assert all(module.startswith("rowlock.testing.") for module in rows.values())
