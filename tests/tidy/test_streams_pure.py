"""The files of ``streams/`` that decide are pure: they run no SQL, ask no clock, read no file, and
compute the same in each process.

So they are tested alone, a step can be repeated, and a reader knows without looking that nothing
happens there.
"""

from __future__ import annotations

import ast

import pytest

from .reading import PACKAGE, Source, dotted, imports, package, planted, room_of

WING = "src/rowlock/streams/"
PURE = (
    f"{WING}computing/",
    f"{WING}cut_plan.py",
    f"{WING}stalls.py",
    f"{WING}inputs/candidates.py",
    f"{WING}shards/layout.py",
)
GROUND = frozenset({"errors", "redaction", "stream_errors"})
"""Rooms that a pure file may know."""
NAMES_OF_GROUND = frozenset({"rowlock.tasks.as_ordinary"})
"""And what it may know of others: this makes one error of another, and starts nothing."""
STANDARD_LIBRARY = frozenset(
    {
        *("__future__", "abc", "base64", "bisect", "collections", "dataclasses", "datetime"),
        *("decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect"),
        *("ipaddress", "itertools"),
        *("json", "math", "operator", "random", "re", "types", "typing", "typing_extensions"),
        "uuid",
    }
)
"""Modules that reach nothing outside of the process."""
IMPURE_NAMES = frozenset(
    {
        *("random.random", "random.seed", "random.choice", "random.randint", "random.shuffle"),
        *("uuid.uuid1", "uuid.uuid4", "random.SystemRandom"),
    }
)
"""What these modules have that is another one each time."""
IMPURE_CALLS = frozenset(
    {*("compile", "eval", "exec", "hash", "id", "input", "open", "print"), "__import__"}
)
"""Built-in functions that reach outside, or whose results differ from process to process."""


def is_pure_file(path: str) -> bool:
    """Whether a file is one of those that decide."""
    return path.startswith(PURE)


def impurities(tree: list[Source]) -> list[str]:
    """Find imports and calls by which a pure file would reach outside."""
    return [
        finding
        for source in tree
        if is_pure_file(source.path)
        for finding in (*_imports_of(source), *_calls_of(source))
    ]


def _imports_of(source: Source) -> list[str]:
    return [
        source.finding(line, f"{target}: a pure file may not know it")
        for target, line in imports(source)
        if not may_import(target)
    ]


def may_import(target: str) -> bool:
    """Whether a pure file may import `target`."""
    top = target.split(".", maxsplit=1)[0]
    if top != PACKAGE:
        return top in STANDARD_LIBRARY and target not in IMPURE_NAMES
    path = f"src/{target.replace('.', '/')}"
    if room_of(target) in GROUND or target in NAMES_OF_GROUND:
        return True
    return f"{path}.py".startswith(PURE) or is_name_of_pure(path)


def is_name_of_pure(path: str) -> bool:
    """Whether `path` is that of a name in a pure file."""
    return is_pure_file(f"{path.rpartition('/')[0]}.py")


def _calls_of(source: Source) -> list[str]:
    return [
        source.finding(node, f"{dotted(node.func)}() in a pure file")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and (dotted(node.func) in IMPURE_CALLS or dotted(node.func) in IMPURE_NAMES)
    ]


def test_files_that_decide_are_pure() -> None:
    """A replay would decide otherwise than the step that it repeats, and a test of a decision would
    need a database.
    """
    assert impurities(package()) == []


def test_there_are_pure_files() -> None:
    """The law above would be about files that have moved."""
    paths = [source.path for source in package()]
    assert any(path.startswith(PURE[0]) for path in paths)


@pytest.mark.parametrize(
    "text",
    [
        "from sqlalchemy import select",
        "import sqlite3",
        "import asyncio",
        "from pathlib import Path",
        "from time import monotonic",
        "from rowlock.clock import utc_now",
        "from rowlock import Pipeline",
        "import rowlock",
        "from rowlock.streams.cutter import Cutter",
        "from rowlock.streams.shards import shard",
        "from rowlock.database.transaction import transaction",
        "def f():\n    from rowlock.leases.item import PipelineItem",
        "from uuid import uuid4",
        "from random import random",
        "import random\nrandom.shuffle([])",
        "hash('a')",
        "open('a')",
        "print(1)",
    ],
)
def test_planted_impurity(text: str) -> None:
    """The law above would pass whatever is imported and called."""
    for path in ("computing/compute.py", "shards/layout.py", "cut_plan.py"):
        assert len(impurities(planted(text, f"{WING}{path}"))) == 1
