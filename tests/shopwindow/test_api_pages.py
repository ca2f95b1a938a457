"""Every public name stands on a page of ``docs/reference/api/``, which is made of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from .pages import DOCS, ROOT, blocks_of, pages

LISTED = ("rowlock", "rowlock.dispatch", "rowlock.graph", "rowlock.streams", "rowlock.testing")
"""Modules that list their public names."""
WHOLE = ("rowlock.events", "rowlock.errors", "rowlock.stream_errors", "rowlock.streams.events")
"""Modules of which each class is public."""
_DIRECTIVE = re.compile(
    r"^::: (?P<path>[\w.]+)\n(?: +options:\n(?: +members:(?P<members> .+|(?:\n +- \w+)+)\n)?)?",
    re.MULTILINE,
)


class Public(NamedTuple):
    """A name, and a number that tells its object apart."""

    name: str
    number: int


def public(path: str) -> tuple[Any, Public]:
    """Return what a dotted path leads to.

    Raises:
        AttributeError: it leads to nothing.
    """
    module, _, rest = path, "", ""
    while find_spec_of(module) is None:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    there: Any = import_module(module)
    for name in rest.split(".") if rest else ():
        there = getattr(there, name)
    return there, Public(path.rpartition(".")[2], id(there))


def find_spec_of(module: str) -> object | None:
    """Return what is known of a module, or None if it is none."""
    try:
        return find_spec(module)
    except ModuleNotFoundError:
        return None


def shown_on(text: str) -> Iterator[Public]:
    for directive in _DIRECTIVE.finditer(text):
        there, name = public(directive["path"])
        yield name
        if isinstance(there, ModuleType):
            members = re.findall(r"\w+", directive["members"] or "")
            for member in members if members != ["false"] else ():
                yield public(f"{directive['path']}.{member}")[1]
            for member in vars(there) if not members else ():
                if not member.startswith("_"):
                    yield Public(member, id(vars(there)[member]))


def imported_by(text: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of rowlock that a program imports from, with the names."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] == "rowlock":
                    yield from ((module, one.name) for one in names)


def demanded() -> dict[str, Public]:
    """Return all public names, and those that the docs and the examples import, by their paths."""
    found = {(module, name) for module in LISTED for name in import_module(module).__all__}
    for module in map(import_module, WHOLE):
        classes = [one for one in vars(module).values() if isinstance(one, type)]
        own = [one.__name__ for one in classes if one.__module__ == module.__name__]
        found |= {(module.__name__, name) for name in own}
    for page in pages():
        for block in blocks_of(page.read_text(encoding="utf-8")):
            if block.language == "python" and not block.is_fragment:
                found |= set(imported_by(block.text))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        found |= set(imported_by(example.read_text(encoding="utf-8")))
    # An attribute, and not what the path leads to: a function may be called like its module.
    return {
        f"{module}.{name}": Public(name, id(getattr(import_module(module), name)))
        for module, name in sorted(found)
    }


DEMANDED = demanded()
SHOWN = {
    name
    for page in sorted((DOCS / "reference" / "api").glob("*.md"))
    for name in shown_on(page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("path", DEMANDED)
def test_public_name_is_on_a_page(path: str) -> None:
    """A host would use a name of which the reference knows nothing."""
    assert DEMANDED[path] in SHOWN


def test_options_are_read() -> None:
    """An option that was wrapped like a sentence would end the building of the site."""
    for page in sorted((DOCS / "reference" / "api").glob("*.md")):
        lines = page.read_text(encoding="utf-8").splitlines()
        named = [number for number, line in enumerate(lines) if line.startswith(":::")]
        follow = {lines[number + 1] for number in named if number + 1 < len(lines)}
        assert follow <= {"", "    options:"}, page.name


def test_planted_name() -> None:
    """The test above would pass a name that no page shows."""
    options = "    options:\n      members:\n        - sleep\n"
    shown = set(shown_on(f"::: rowlock.Apply\n\n::: rowlock.clock\n{options}"))
    assert public("rowlock.pipelines.outcomes.Apply")[1] in shown
    assert public("rowlock.clock.sleep")[1] in shown
    assert public("rowlock.clock.monotonic")[1] not in shown
    assert public("rowlock.Retry")[1] not in shown
