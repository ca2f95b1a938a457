"""One planted bug: a guard, what it looks like without it, and the tests that must notice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Bug:
    """One guard.

    Attributes:
        name: what is wrong without it.
        file: below ``src/rowlock``.
        function: qualified name of the function or class that has the guard, without ``<locals>``;
            empty for the module.
        guard: stands in that function exactly once; as few tokens as tell it from all others there.
        without: what stands there instead.
        tests: pytest's names of the tests that find it.
    """

    name: str
    file: str
    function: str
    guard: str
    without: str
    tests: tuple[str, ...]

    def count_in(self, text: str) -> int | None:
        """Return how often its guard stands in its function, None if there is no such function.

        Args:
            text: of its file.
        """
        spans = spans_of(self.function, text)
        return sum(len(self._found_in(text[a:b])) for a, b in spans) if spans else None

    def planted_in(self, text: str) -> str:
        """Return `text` of its file with the bug in it."""
        for start, end in reversed(spans_of(self.function, text)):
            for found in reversed(self._found_in(text[start:end])):
                first, last = start + found.start(), start + found.end()
                text = text[:first] + self.without + text[last:]
        return text

    def _found_in(self, part: str) -> list[re.Match[str]]:
        as_is = list(re.finditer(re.escape(self.guard), part))
        return as_is or list(pattern_of(self.guard).finditer(part))


@lru_cache
def pattern_of(guard: str) -> re.Pattern[str]:
    """Return what finds `guard` wherever the formatter broke its lines, or took breaks away."""
    begin = re.match(r"\s*", guard)
    end = re.search(r"\s*$", guard)
    assert begin is not None
    assert end is not None
    words = re.findall(r"\w+|[^\w\s]|\s+", guard.strip())
    between = "".join(map(_pattern_of_part, words))
    return re.compile(_pattern_of_edge(begin[0]) + between + _pattern_of_edge(end[0]))


def _pattern_of_part(part: str) -> str:
    if part.isspace():
        # In a string too, where the formatter begins another one, and in a comment.
        return r'(?:\s+(?:# )?|\s"\s+f?"|"\s+f?"\s)'
    if part in ")]}":
        return r"(?:,?\s+)?" + re.escape(part)
    if part in "([{":
        return re.escape(part) + r"\s*"
    if part == ".":
        return r"\s*\."
    return re.escape(part)


def _pattern_of_edge(blank: str) -> str:
    # Alone, a space is one between words, where a line may end; more are the indentation of one.
    return r"\s+" if blank == " " else re.escape(blank)


def spans_of(function: str, text: str) -> list[tuple[int, int]]:
    """Return where all that has the qualified name of `function` begins and ends in `text`: a
    property may be there twice.
    """
    return [(start, end) for name, start, end in parts_of(text) if name == function]


@lru_cache
def parts_of(text: str) -> tuple[tuple[str, int, int], ...]:
    """Return the qualified names of a module's functions and classes, each with where it begins
    and ends; first the module.
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    parts = [("", 0, len(text))]
    for name, node in _named_in(ast.parse(text)):
        first = min(each.lineno for each in (node, *node.decorator_list))
        parts.append((name, starts[first - 1], starts[node.end_lineno or node.lineno]))
    return tuple(parts)


def _named_in(
    tree: ast.AST, within: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}" if within else node.name
            yield name, node
            yield from _named_in(node, name)
        else:
            yield from _named_in(node, within)
