"""Law 6: nothing is called core, common, utils, helpers, base, misc, shared, models or types.

Such a name says that somebody did not know where a thing belongs, and invites the next one in.
"""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

import pytest

from .reading import ROOT, Source, committed_files, definitions, package, planted, words_of

NOWHERE = frozenset(
    {
        "core",
        "common",
        "util",
        "utils",
        "helper",
        "helpers",
        "base",
        "misc",
        "shared",
        "models",
        "types",
    }
)


def nowhere_paths(paths: list[str]) -> list[str]:
    """Find files and folders with a word in their name that says nothing."""
    return [
        path
        for path in paths
        for part in PurePosixPath(path).parts
        if says_nothing(part.split(".")[0])
    ]


def nowhere_definitions(tree: list[Source]) -> list[str]:
    """Find classes and functions with a word in their name that says nothing.

    A host's declarative ``Base`` is called so everywhere, so examples of hosts may have one.
    """
    return [
        source.finding(node, f"{node.name} says nothing; name what it is")
        for source in tree
        for node, _ in definitions(source)
        if says_nothing(node.name) and not is_declarative_base(node)
    ]


def says_nothing(name: str) -> bool:
    """Whether a word of the name is one of those that could stand anywhere."""
    return not NOWHERE.isdisjoint(words_of(name))


def is_declarative_base(node: ast.AST) -> bool:
    """Whether the definition is a host's root of mapped classes."""
    return isinstance(node, ast.ClassDef) and any(
        "DeclarativeBase" in ast.unparse(base) for base in node.bases
    )


def test_files_and_folders_say_what_they_are() -> None:
    """A drawer for everything would fill."""
    assert nowhere_paths([path.relative_to(ROOT).as_posix() for path in committed_files()]) == []


def test_definitions_say_what_they_are() -> None:
    """The drawer would be a class instead of a file."""
    assert nowhere_definitions(package()) == []


@pytest.mark.parametrize(
    "path",
    [
        "src/rowlock/utils.py",
        "src/rowlock/core/claim.py",
        "tests/helpers.py",
        "src/rowlock/rows/sql_utils.py",
        "docs/misc.md",
    ],
)
def test_planted_path(path: str) -> None:
    """The law above would pass any path."""
    assert nowhere_paths([path]) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "class BaseWorker: pass",
        "def sql_helper(): pass",
        "class WorkerBase: pass",
        "class Types: pass",
    ],
)
def test_planted_definition(text: str) -> None:
    """The law above would pass any name."""
    assert len(nowhere_definitions(planted(text))) == 1
