"""All the lists beside this file, and whether they still fit the library.

The one idea: a list is found, not named: every tuple of bugs in a file ``*bugs.py`` belongs to it.
Nothing is run here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from bug import Bug

HERE = Path(__file__).resolve().parent
PROMISED = {
    "drop the token from the guard": "the guard of the apply has no token",
    "claim with the host's clock": "a claim goes by the host's clock",
    "heartbeat without a token on PostgreSQL": "a renewal needs no token on PostgreSQL",
    "heartbeat without a token on SQLite": "a renewal needs no token on SQLite",
    "track after enqueue": "items are queued before they are tracked",
    "no release at shutdown": "nothing is released at shutdown",
    "clear the hint late": "a hint is taken down after the fetch",
    "two-transaction apply": "an outcome is two transactions",
    "free related locks by owner only": "related rows are freed whoever holds them",
    "worker dies on a foreign cancel": "a loop dies of a foreign cancellation",
}
"""Bugs that other libraries of this kind have had, and what they are called here."""


def all_bugs() -> tuple[Bug, ...]:
    """Return the bugs of every list, file by file."""
    return tuple(bug for path in sorted(HERE.glob("*bugs.py")) for bug in _bugs_in(path.stem))


def _bugs_in(module: str) -> Iterator[Bug]:
    for value in vars(import_module(module)).values():
        if isinstance(value, tuple) and value and all(isinstance(one, Bug) for one in value):
            yield from value


def misfits(bugs: Iterable[Bug], root: Path) -> list[str]:
    """Say what is wrong with `bugs`, each of which would otherwise be found when it is planted,
    or never.
    """
    bugs = tuple(bugs)
    names = Counter(bug.name for bug in bugs)
    found = [
        f"{name}: there are {count} of this name" for name, count in names.items() if count > 1
    ]
    found += [
        f"{name}: {ours!r} is in no list" for name, ours in PROMISED.items() if ours not in names
    ]
    for bug in bugs:
        found += [f"{bug.name}: {problem}" for problem in _problems(bug, root)]
    return found


def _problems(bug: Bug, root: Path) -> Iterator[str]:
    path = root / "src" / "rowlock" / bug.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        count = bug.count_in(text)
    except SyntaxError as error:
        yield f"{bug.file} is no Python: {error}"
        return
    if count is None:
        yield f"there is no {bug.function} in {bug.file}"
    elif count != 1:
        yield f"the guard stands {count} times in {bug.function or 'all'} of {bug.file}"
    try:
        compile(bug.planted_in(text), bug.file, "exec")
    except SyntaxError as error:
        # Every test that imports it would "find" that.
        yield f"with the bug {bug.file} is no Python: {error}"
    if bug.without == bug.guard:
        yield "nothing is taken out"
    if not bug.tests:
        yield "no test is named"
    for test in bug.tests:
        if not _is_there(test, root):
            yield f"there is no test {test}"


def _is_there(test: str, root: Path) -> bool:
    file, *names = test.split("[", maxsplit=1)[0].split("::")
    path = root / file
    if not names:
        return path.exists()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return all(re.search(rf"\b(?:def|class) {re.escape(name)}\b", text) for name in names)
