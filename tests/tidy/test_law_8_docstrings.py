"""Law 8: modules, names that the reference shows and tests say in a docstring what they are for;
inside, a docstring stands where a name does not say it. Everything is annotated.

Whether the annotations are right is asked by the type checkers (``nox -s typing``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from .reading import (
    ROOT,
    Definition,
    Function,
    Source,
    decorators,
    definitions,
    functions,
    package,
    planted,
    sources,
)

NEED_NONE = frozenset({"overload", "override", "setter", "deleter"})


def silent_modules(tree: list[Source]) -> list[str]:
    return [
        source.finding(1, "the module needs a docstring")
        for source in tree
        if not ast.get_docstring(source.tree)
    ]


def shown_in(pages: Iterable[str]) -> frozenset[str]:
    """Return what the reference shows: modules by their dotted names, all else by its own."""
    shown = [target for page in pages for target in re.findall(r"(?m)^::: ([\w.]+)", page)]
    return frozenset([*shown, *(target.rpartition(".")[2] for target in shown)])


def silent_names(tree: list[Source], shown: frozenset[str]) -> list[str]:
    """Find classes, functions and methods that the reference shows, without a docstring."""
    return [
        source.finding(node, f"{node.name} needs a docstring")
        for source in tree
        for node, around in definitions(source)
        if is_public(node, around)
        and not ast.get_docstring(node)
        and not shown.isdisjoint((source.module, (*around, node)[0].name))
    ]


def silent_tests(tree: list[Source]) -> list[str]:
    """Find tests that do not say which promise would be broken."""
    return [
        source.finding(node, f"{node.name} needs a docstring: the promise that would be broken")
        for source in tree
        for node, _ in functions(source)
        if node.name.startswith("test") and not ast.get_docstring(node)
    ]


def is_public(node: Definition, around: tuple[Definition, ...]) -> bool:
    """Whether a reader of the API meets the definition: no private name on the way to it, and
    not inside a function.
    """
    if any(isinstance(outer, Function) for outer in around) or not NEED_NONE.isdisjoint(
        decorators(node)
    ):
        return False
    return not any(name.startswith("_") for name in (*(outer.name for outer in around), node.name))


def unannotated(tree: list[Source]) -> list[str]:
    """Find functions with a parameter or a result of unknown type."""
    found: list[str] = []
    for source in tree:
        for node, is_method in functions(source):
            bare = [
                argument.arg
                for argument in arguments_of(node, is_method=is_method)
                if argument.annotation is None
            ]
            found.extend(source.finding(node, f"{node.name}: annotate {name!r}") for name in bare)
            if node.returns is None:
                found.append(source.finding(node, f"{node.name}: annotate what it returns"))
    return found


def arguments_of(node: Function, *, is_method: bool) -> Iterator[ast.arg]:
    """Yield the parameters that need an annotation: all but `self`."""
    named = [*node.args.posonlyargs, *node.args.args]
    yield from named[is_method:]
    yield from node.args.kwonlyargs
    yield from (
        argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None
    )


def test_modules_say_what_they_are() -> None:
    """A reader would have to infer the one idea of a file from its code."""
    assert silent_modules(sources("src/", "tests/", "examples/", "alembic/", "noxfile.py")) == []


def test_public_names_say_what_they_do() -> None:
    """The reference would have empty entries."""
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    assert silent_names(package(), shown_in(pages)) == []


def test_tests_name_their_promise() -> None:
    """A failing test would not tell what a host has lost."""
    assert silent_tests(sources("tests/")) == []


def test_everything_is_annotated() -> None:
    """A type checker would be silent about what it cannot see."""
    assert unannotated(package()) == []


def test_planted_silent_module() -> None:
    """The law above would pass any module."""
    assert len(silent_modules(planted("x = 1"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "class A: pass",
        "class A:\n    'Doc.'\n    async def f(self): pass",
        "if x:\n    def A(): pass",
    ],
)
def test_planted_silent_name(text: str) -> None:
    """The law above would pass any name."""
    assert len(silent_names(planted(text), shown_in(["::: rowlock.A"]))) == 1
    assert len(silent_names(planted(text), shown_in(["::: rowlock.rows.planted"]))) == 1


@pytest.mark.parametrize(
    "text", ["def test_a(): pass", "class TestA:\n    async def test_a(self): pass"]
)
def test_planted_silent_test(text: str) -> None:
    """The law above would pass any test."""
    assert len(silent_tests(planted(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(a) -> None: pass",
        "def f(): pass",
        "class A:\n    def f(self, *args) -> None: pass",
        "class A:\n    @staticmethod\n    def f(a) -> None: pass",
        "def f() -> None:\n    def g(x) -> None: pass",
    ],
)
def test_planted_unannotated(text: str) -> None:
    """The law above would pass any signature."""
    assert len(unannotated(planted(text))) == 1
