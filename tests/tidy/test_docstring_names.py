"""Names in docstrings exist: what stands in single backticks, the files that are named, and each
entry of a list of names.

The one idea: single backticks are for names of this repository, double ones for everything else. A
name counts as existing if code has it anywhere; only members of our own classes, parameters and
attributes are looked for where they belong.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from .reading import (
    ROOT,
    Function,
    Source,
    committed_files,
    definitions,
    last_name,
    planted,
    sources,
)

NAME = re.compile(r"(?<![`\w])`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
FILE = re.compile(r"`([\w./-]+\.py)`")
SECTION = re.compile(r"^ *(Args|Attributes):\n((?: +\S.*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"\*{0,2}(\w+): ")
SOURCES = re.compile(r"^ *Sources?: (?:.+(?:\n|$))+", re.MULTILINE)
"""A paragraph about what is elsewhere."""
WORDS = frozenset({"assert", "finally", "yield", "def", *dir(builtins)})
"""What is Python's own."""


def stale_names(tree: list[Source]) -> list[str]:
    """Find names in single backticks that no code of `tree` has, or that are no members of the
    class before them.
    """
    known, (members, whole) = names_in(tree), members_in(tree)
    found = []
    for source in tree:
        for node, line, text in docstrings(source):
            del node
            for match in NAME.finditer(text):
                parts = match[1].rstrip(".").split(".")
                pairs = pairwise(parts)
                is_stale = not known.issuperset(parts) or any(
                    a in whole and b not in members[a] for a, b in pairs
                )
                if is_stale and not match[1].endswith(".py"):
                    number = line + text[: match.start()].count("\n")
                    found.append(source.finding(number, f"there is no {match[1]}"))
    return found


def stale_files(tree: list[Source], paths: Iterable[str]) -> list[str]:
    """Find files in backticks that are not among `paths`, given by their last parts."""
    ends = {path[i:] for path in paths for i in [0, *(m.end() for m in re.finditer("/", path))]}
    return [
        source.finding(line + text[: match.start()].count("\n"), f"there is no file {match[1]}")
        for source in tree
        for _, line, text in docstrings(source)
        for match in FILE.finditer(text)
        if match[1] not in ends and "site-packages" not in match[1]
    ]


def stale_entries(tree: list[Source]) -> list[str]:
    """Find entries of ``Args:`` and ``Attributes:`` that are neither parameters nor members."""
    (members, _), found = members_in(tree), []
    for source in tree:
        for node, line, text in docstrings(source):
            if isinstance(node, ast.Module):
                continue
            there = parameters_of(node) | members.get(
                node.name if isinstance(node, ast.ClassDef) else "", set()
            )
            entries = [entry for _, body in SECTION.findall(text) for entry in entries_of(body)]
            found += [
                source.finding(line, f"{node.name} has no {entry}")
                for entry in entries
                if entry not in there
            ]
    return found


def entries_of(body: str) -> Iterator[str]:
    """Yield the names of a section: the lines with the least indent that begin with one."""
    lines = [line for line in body.splitlines() if line.strip()]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    for line in lines:
        match = ENTRY.match(line[indent:])
        if match is not None:
            yield match[1]


def docstrings(source: Source) -> Iterator[tuple[ast.Module | ast.ClassDef | Function, int, str]]:
    """Yield each text that stands by itself, with what it is about and its first line:
    docstrings, and those of attributes.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            for statement in node.body:
                value = getattr(statement, "value", None)
                if (
                    isinstance(statement, ast.Expr)
                    and isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                ):
                    yield node, statement.lineno, SOURCES.sub(_blank, value.value)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def names_in(tree: list[Source]) -> set[str]:
    """Return every name that code has, as it is defined or used, and the parts of the paths."""
    names = set(WORDS)
    for source in tree:
        names.update(source.path.removesuffix(".py").split("/"))
        for node in ast.walk(source.tree):
            names.update(_names_of(node))
    return names


def _names_of(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.alias(name=name, asname=other):
            return (*name.split("."), other or "")
        case (
            ast.Name(id=name)
            | ast.Attribute(attr=name)
            | ast.arg(arg=name)
            | ast.keyword(arg=str(name))
        ):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case _:
            return ()


def members_in(tree: list[Source]) -> tuple[dict[str, set[str]], set[str]]:
    """Return by class the names of its members, those of its bases included, and the classes
    that have no base from elsewhere.
    """
    classes: dict[str, list[ast.ClassDef]] = {}
    for source in tree:
        for node, _ in definitions(source):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    own = {
        name: {member for node in nodes for member in _own_members(node)}
        for name, nodes in classes.items()
    }
    bases = {
        name: {base for node in nodes for base in _bases_of(node)}
        for name, nodes in classes.items()
    }
    members, whole = {}, set()
    for name in classes:
        around = {name}
        while more := {base for each in around for base in bases.get(each, ())} - around:
            around |= more
        members[name] = {member for each in around for member in own.get(each, ())}
        whole |= {name} if around <= own.keys() else set()
    return members, whole


def _bases_of(node: ast.ClassDef) -> set[str]:
    names = {
        last_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases
    }
    return names - {"Generic", "Protocol", "object"}


def _own_members(node: ast.ClassDef) -> Iterator[str]:
    yield from parameters_of(node)
    for statement in node.body:
        match statement:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr


def parameters_of(node: ast.ClassDef | Function) -> set[str]:
    """Return the parameters of a function, or of what makes a class."""
    if isinstance(node, ast.ClassDef):
        made = [
            each
            for each in node.body
            if isinstance(each, Function) and each.name in {"__init__", "__new__"}
        ]
        return {name for each in made for name in parameters_of(each)}
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


@pytest.fixture(scope="module")
def tree() -> list[Source]:
    return sources("src/", "tests/", "examples/")


def test_names_in_docstrings_exist(tree: list[Source]) -> None:
    """A reader would look for what was renamed long ago."""
    assert stale_names(tree) == []


def test_files_in_docstrings_exist(tree: list[Source]) -> None:
    """A reader would be sent to a file that is not there."""
    assert (
        stale_files(tree, [path.relative_to(ROOT).as_posix() for path in committed_files()]) == []
    )


def test_entries_in_docstrings_exist(tree: list[Source]) -> None:
    """The reference would have parameters and attributes that a caller cannot use."""
    assert stale_entries(tree) == []


@pytest.mark.parametrize(
    "text",
    [
        '"""See `gone`."""',
        'def f() -> None:\n    """As `f` and `gone()` do."""',
        'class A:\n    """Has `A.gone`."""\n    there = 1',
        'class B: pass\nclass A(B):\n    """Has `A.gone`."""\ngone = 1',
        'X = 1\n"""As `Y`."""',
    ],
)
def test_planted_stale_name(text: str) -> None:
    """The law above would pass any name."""
    assert len(stale_names(planted(text))) == 1


def test_planted_stale_file() -> None:
    """The law above would pass any file."""
    text = '"""As ``rows/planted.py``, `planted.py` and ``planned.py``; not in ``ted.py``."""'
    assert len(stale_files(planted(text), ["src/rowlock/rows/planted.py"])) == 2


@pytest.mark.parametrize(
    "text",
    [
        (
            'def f(a: int) -> None:\n    """Do.\n\n    Args:\n        a: one.\n        b: two.\n  '
            '  """'
        ),
        (
            'class A:\n    """Be.\n\n    Attributes:\n        a: one\n            c: on.\n       '
            ' b: two.\n    """\n    a = 1'
        ),
        (
            'class A:\n    """Be.\n\n    Args:\n        a: one.\n    """\n    def __init__(self, b:'
            " int) -> None: pass"
        ),
    ],
)
def test_planted_stale_entry(text: str) -> None:
    """The law above would pass any entry."""
    assert len(stale_entries(planted(text))) == 1
