"""Law 11: no value outside of ``dialects/`` names a database or a driver.

Who decides by a name, writes a URL with it, or imports SQL that one database alone knows, does what
a dialect is there for; and a database that is added later is forgotten there. `testing/` and
`demo/` name them where they open databases. Prose may name them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .reading import Source, imports, package, planted

ROOMS = ("dialects", "testing", "demo")
ABOVE_THE_DOOR = (
    "src/rowlock/streams/dialects/",
    "src/rowlock/insight/dialects.py",
    "src/rowlock/insight/insight_dialect.py",
)
"""What a wing or a window asks of databases stands in it: the floors below do not know it."""
NAME = re.compile(
    r"(?<![A-Za-z0-9.])(?:postgres(?:ql)?|sqlite3?|pysqlite|asyncpg|aiosqlite|psycopg2?|mysql|mariadb)(?![A-Za-z0-9])"
)
"""A name, also in front of an option such as ``postgresql_where``, or within a URL."""
DIALECTS_OF_SQLALCHEMY = "sqlalchemy.dialects."


def named_databases(tree: list[Source]) -> list[str]:
    """Find values, keywords and imports that name a database or a driver."""
    found = []
    for source in (source for source in tree if not may_name_them(source)):
        prose = {id(node.value) for node in ast.walk(source.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(source.tree):
            found += [
                source.finding(node, f"{name!r} belongs in dialects/")
                for name in names_in(node)
                if id(node) not in prose
            ]
        for target, line in imports(source):
            if NAME.match(target) or target.startswith(DIALECTS_OF_SQLALCHEMY):
                found.append(source.finding(line, f"{target} belongs in dialects/"))
    return found


def may_name_them(source: Source) -> bool:
    """Whether a file belongs to a dialect, or opens databases."""
    return source.room in ROOMS or source.path.startswith(ABOVE_THE_DOOR)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a value or a keyword holds."""
    match node:
        case ast.Constant(value=str(text)):
            yield from NAME.findall(text)
        case ast.keyword(arg=str(name)):
            yield from NAME.findall(name)


def test_databases_are_named_in_their_dialects() -> None:
    """A third database would need a change wherever somebody decides by a name, and would be
    wrong where one was forgotten.
    """
    assert named_databases(package()) == []


@pytest.mark.parametrize(
    "text",
    [
        'if connection.dialect.name == "sqlite": pass',
        'LOCKERS = {"postgresql": 1}',
        'url = "sqlite+aiosqlite:///app.db"',
        'says = f"use {name} of asyncpg"',
        "op.create_index(name, postgresql_concurrently=True)",
        'options = {"sqlite_where": where}',
        "import aiosqlite",
        "def f():\n    from psycopg import sql",
        "from sqlalchemy.dialects.postgresql import insert",
    ],
)
def test_planted_name(text: str) -> None:
    """The law above would pass whatever is named."""
    assert named_databases(planted(text))
