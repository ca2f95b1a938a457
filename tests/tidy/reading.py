"""How the laws read the tree: sources, imports, functions.

The one idea: a law is a pure function from sources to findings, so that a test can hand it a source
with a planted violation and see it bite. Everything that touches the disk is in `sources` and
`committed_files`.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rowlock"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@lru_cache(maxsize=2000)
def _parsed(path: str, text: str) -> ast.Module:
    return ast.parse(text, filename=path)


class Source(NamedTuple):
    """A Python file: its path below the repository, with forward slashes, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.path, self.text)

    @property
    def module(self) -> str:
        """The dotted name: ``src/rowlock/rows/columns.py`` is ``rowlock.rows.columns``."""
        parts = self.path.removeprefix("src/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The part right below the package, of which a floor is made: ``rows``, ``clock``; empty
        for the front door.
        """
        return room_of(self.module)

    def finding(self, node: ast.AST | int, text: str) -> str:
        """Return `text` with the place in front of it, in the form that editors open."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line}: {text}"


class Import(NamedTuple):
    """One imported thing: its full dotted name, and where."""

    target: str
    line: int


def room_of(module: str) -> str:
    """Return the room that a module of the package belongs to."""
    return module.split(".")[1] if "." in module else ""


def planted(text: str, path: str = "src/rowlock/rows/planted.py") -> list[Source]:
    """Return a tree of one file, as tests plant it."""
    return [Source(path, text)]


@lru_cache
def committed_files() -> tuple[Path, ...]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:  # an unpacked source archive
        below = ((path, path.relative_to(ROOT).parts) for path in ROOT.rglob("*"))
        return tuple(
            path for path, parts in below if path.is_file() and not any(map(is_by_product, parts))
        )
    # The folder may belong to another user than the one who runs the tests, as it does in
    # containers.
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(
        ROOT / name for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file()
    )


def is_by_product(name: str) -> bool:
    """Whether a file or folder is made by tools, as far as its name tells."""
    return (
        name.startswith(".")
        or name in {"__pycache__", "build", "dist", "site"}
        or name.endswith(".egg-info")
    )


def sources(*folders: str) -> list[Source]:
    """Return the Python files below `folders` of the repository (all of them, without
    arguments).
    """
    found = []
    for path in committed_files():
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(".py") and (not folders or name.startswith(folders)):
            found.append(Source(name, path.read_text(encoding="utf-8")))
    return found


def package() -> list[Source]:
    found = sources("src/rowlock/")
    assert found, "the package was not found: a law that reads nothing forbids nothing"
    return found


def imports(source: Source) -> Iterator[Import]:
    """Yield what `source` imports, anywhere in it: also inside functions, also for type checkers
    only.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(source, node)
            yield from (Import(f"{origin}.{alias.name}", node.lineno) for alias in node.names)


def _origin(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    here = parts if source.path.endswith("__init__.py") else parts[:-1]
    there = here[: len(here) - (node.level - 1)]
    return ".".join([*there, node.module] if node.module else there)


def definitions(source: Source) -> Iterator[tuple[Definition, tuple[Definition, ...]]]:
    """Yield every function and class with the definitions around it, outermost first."""

    def below(
        node: ast.AST, around: tuple[Definition, ...]
    ) -> Iterator[tuple[Definition, tuple[Definition, ...]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                yield child, around
                yield from below(child, (*around, child))
            else:
                yield from below(child, around)

    return below(source.tree, ())


def functions(source: Source) -> Iterator[tuple[Function, bool]]:
    """Yield every function and whether it is a method, that is, has a `self` or `cls` to skip."""
    for node, around in definitions(source):
        if isinstance(node, Function):
            inside_class = bool(around) and isinstance(around[-1], ast.ClassDef)
            yield node, inside_class and "staticmethod" not in decorators(node)


def decorators(node: Definition) -> set[str]:
    """Return the last names of the decorators: ``typing.overload`` is ``overload``."""
    bare = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return {last_name(item) for item in bare}


def last_name(node: ast.AST) -> str:
    """Return ``c`` of ``a.b.c``, ``a`` of ``a``, and nothing of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` as it is spelt, and nothing where a part is not a name."""
    if isinstance(node, ast.Attribute):
        origin = dotted(node.value)
        return f"{origin}.{node.attr}" if origin else ""
    return node.id if isinstance(node, ast.Name) else ""


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body without those of the functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Definition | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def words_of(name: str) -> Iterable[str]:
    """Return the lower-case words of a name: ``BaseWorker`` and ``base_worker`` are both *base*,
    *worker*.
    """
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
