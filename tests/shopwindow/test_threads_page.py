"""``docs/design/threads-and-loops.md`` names every thread that the package starts, and where."""

from __future__ import annotations

import ast

import pytest

from .pages import DOCS, ROOT

PAGE = (DOCS / "design" / "threads-and-loops.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "rowlock"
STARTERS = frozenset({"Thread", "ThreadPoolExecutor", "DaemonThreads", "run_sync"})
"""Calls that start a thread or a process, by their last name; ``run_sync`` is anyio's."""
NAMED_BY = ("name", "thread_name_prefix")
NOT_A_REPLICA = ("testing", "demo")


def starts_in(text: str) -> list[str]:
    """Return the names of the threads that a module starts; empty for a start without a name."""
    names = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="to_process"), attr="run_sync")):
                names.append("")
            case ast.ClassDef(bases=[ast.Attribute(attr="Thread") | ast.Name(id="Thread"), *_]):
                names.append("")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), keywords=keywords):
                if called in STARTERS - {"run_sync"}:
                    given = [one.value for one in keywords if one.arg in NAMED_BY]
                    names.append(beginning_of(given[0]) if given else "")
    return names


def beginning_of(name: ast.expr) -> str:
    """Return the part of a name that does not vary."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    return str(first.value) if isinstance(first, ast.Constant) else ""


def modules() -> dict[str, list[str]]:
    """Return the modules of a replica that start a thread or a process, and the threads' names."""
    below = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = {
        name: starts_in(path.read_text(encoding="utf-8"))
        for name, path in below.items()
        if not name.startswith(NOT_A_REPLICA)
    }
    return {name: names for name, names in found.items() if names}


MODULES = modules()


def test_threads_were_found() -> None:
    """The tests below would look for nothing."""
    assert {"tasks.py", "pipelines/attempt.py"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_thread_is_on_the_page(module: str) -> None:
    """A reader would believe that nothing else runs beside the event loop."""
    assert f"`{module}`" in PAGE
    assert [name for name in MODULES[module] if f"`{name.strip()}" not in PAGE] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("threading.Thread(target=f)", [""]),
        ("Thread(target=f, name='rowlock x')", ["rowlock x"]),
        ("ThreadPoolExecutor(2, thread_name_prefix=f'rowlock {name}')", ["rowlock "]),
        ("to_process.run_sync(f)", [""]),
        ("class Worker(threading.Thread): pass", [""]),
        ("connection.run_sync(f)", []),
    ],
)
def test_planted_start(text: str, names: list[str]) -> None:
    """A thread would be started where the test does not look."""
    assert starts_in(text) == names
