"""Law 7: a module has at most 800 lines, nine in ten at most 500, a function at most 70.

And a function has at most 7 parameters, 3 of them by position. Whether things belong together
decides what stands in one file.
"""

from __future__ import annotations

import ast

import pytest

from .reading import Source, functions, package, planted, sources

MODULE_LINES_MAX = 800
MODULE_LINES_MOSTLY_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 7
BY_POSITION_MAX = 3
FIXED = frozenset({"request_update"})
"""Promised to hosts with four by position: whose transaction, which row of which model, and what
to write.
"""
HANDLERS = frozenset({"by_key"})
"""Decorators of hosts' functions that the library calls, with four by position."""


def long_modules(tree: list[Source], lines_max: int = MODULE_LINES_MAX) -> list[str]:
    lines = ((source, len(source.text.splitlines())) for source in tree)
    return [
        source.finding(1, f"{count} lines, not {lines_max}")
        for source, count in lines
        if count > lines_max
    ]


def function_lengths(tree: list[Source]) -> list[tuple[int, str]]:
    """Return the lines of each function, signature and docstring included, and where it is."""
    return [
        (node.end_lineno - node.lineno + 1, source.finding(node, node.name))
        for source in tree
        for node, _ in functions(source)
        if node.end_lineno is not None
    ]


def long_functions(tree: list[Source]) -> list[str]:
    """Find functions that do not fit on a screen."""
    return [
        f"{where} has {count} lines"
        for count, where in function_lengths(tree)
        if count > FUNCTION_LINES_MAX
    ]


def many_parameters(tree: list[Source]) -> list[str]:
    """Find functions whose calls cannot be read: too many parameters, or too many without their
    names.
    """
    found = []
    for source in tree:
        for node, is_method in functions(source):
            by_position = len(node.args.posonlyargs) + len(node.args.args) - is_method
            count = by_position + len(node.args.kwonlyargs)
            if count > PARAMETERS_MAX:
                found.append(
                    source.finding(
                        node, f"{node.name} has {count} parameters, not {PARAMETERS_MAX}"
                    )
                )
            is_fixed = node.name in FIXED or is_handler(node)
            if by_position > BY_POSITION_MAX and not is_fixed:
                found.append(
                    source.finding(
                        node, f"{node.name}: keyword-only from parameter {BY_POSITION_MAX + 1} on"
                    )
                )
    return found


def is_handler(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is called by the library, which says how."""
    calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in HANDLERS for call in calls)


def test_modules_are_short() -> None:
    """A file would have to be scrolled instead of read."""
    assert long_modules(sources()) == []


def test_most_modules_are_shorter() -> None:
    """The exceptions would have become the rule."""
    tree = package()
    assert len(long_modules(tree, MODULE_LINES_MOSTLY_MAX)) <= len(tree) / 10


def test_functions_are_short() -> None:
    """A function would have to be remembered while it is read."""
    assert long_functions(sources()) == []


def test_calls_can_be_read() -> None:
    """A call would be a row of values whose meaning has to be looked up."""
    assert many_parameters(sources("src/", "examples/", "noxfile.py")) == []


def test_planted_long_module() -> None:
    """The law above would pass any module."""
    assert len(long_modules(planted("x = 1\n" * 801))) == 1
    assert long_modules(planted("x = 1\n" * 800)) == []


def test_planted_long_function() -> None:
    """The law above would pass any function."""
    assert len(long_functions(planted("def f():\n" + "    x = 1\n" * 70))) == 1
    assert long_functions(planted("def f():\n" + "    x = 1\n" * 69)) == []


def test_planted_lengths() -> None:
    """A length above would be something else than lines."""
    text = (
        "class A:\n    async def f(self):\n        def g():\n            pass\n        return g\n"
    )
    assert sorted(count for count, _ in function_lengths(planted(text))) == [2, 4]


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, b, c, d): pass",
        "class A:\n    def f(self, a, b, c, d): pass",
        "class A:\n    @staticmethod\n    def f(a, b, c, d): pass",
        "async def f(a, *, b, c, d, e, f, g, h): pass",
        "@flow.fold(Row)\ndef f(a, b, c, d): pass",
    ],
)
def test_planted_parameters(text: str) -> None:
    """The law above would pass any signature."""
    assert len(many_parameters(planted(text))) == 1
