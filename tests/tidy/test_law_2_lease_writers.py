"""Law 2: only `leases/`, and ``leases.py`` of each dialect, execute SQL that writes a lock column.

`rows/` may build such SQL (it executes nothing, by law 3), so outside these two rooms nobody spells
a write of a lock column. The ready-made maps of ``rows/lease_values.py`` go to `leases/`, and to
`pipelines/`, which plans with them and executes nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .reading import Source, imports, package, planted

WRITERS = ("leases", "rows")
OF_A_DIALECT = re.compile(r"rowlock\.dialects\.\w+\.leases")
"""The modules by which each database claims."""
LOCK_COLUMNS = ("lock_token", "lock_owner", "lock_expires_at")
READY_MADE = "rowlock.rows.lease_values"
PLANNERS = ("pipelines",)
WRITING_SQL = re.compile(
    rf"\b(?:update|insert|set)\b.*\b(?:{'|'.join(LOCK_COLUMNS)})\b", re.IGNORECASE | re.DOTALL
)


def lock_writes(tree: list[Source]) -> list[str]:
    """Find writes of a lock column where none belongs."""
    found: list[str] = []
    for source in tree:
        is_writer = source.room in WRITERS or OF_A_DIALECT.fullmatch(source.module)
        if not is_writer:
            for node in ast.walk(source.tree):
                found.extend(
                    source.finding(node, f"only leases/ writes {what}") for what in written_by(node)
                )
        if not is_writer and source.room not in PLANNERS:
            taken = (line for target, line in imports(source) if target.startswith(READY_MADE))
            found.extend(
                source.finding(line, f"only leases/ and pipelines/ take {READY_MADE}")
                for line in taken
            )
    return found


def written_by(node: ast.AST) -> Iterator[str]:
    """Yield the lock columns that `node` writes: an attribute of a row, a value of an UPDATE or
    INSERT, or SQL as text.
    """
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "item")):
            return  # a field of the ticket, not of a row
        case ast.Attribute(attr=name, ctx=ast.Store()) if name in LOCK_COLUMNS:
            yield name
        case ast.Call(func=ast.Attribute(attr="values" | "update"), keywords=keywords):
            yield from (
                keyword.arg for keyword in keywords if keyword.arg and keyword.arg in LOCK_COLUMNS
            )
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=name), *_]) if (
            name in LOCK_COLUMNS
        ):
            yield str(name)
        case ast.Dict(keys=keys):
            yield from (key_name(key) for key in keys if key and key_name(key) in LOCK_COLUMNS)
        case ast.Constant(value=str(text)) if WRITING_SQL.search(text) and "\n\n" not in text:
            yield "a lock column in SQL"


def key_name(key: ast.expr) -> str:
    """Return the column that a key of a values map names: ``"lock_token"`` or
    ``Volume.lock_token``.
    """
    if isinstance(key, ast.Constant):
        return str(key.value)
    return key.attr if isinstance(key, ast.Attribute) else ""


def test_only_leases_write_lock_columns() -> None:
    """A lease could be taken, prolonged or dropped past the guard, and two holders would both be
    right.
    """
    assert lock_writes(package()) == []


VIOLATIONS = [
    "session.execute(update(Row).values(lock_token=None))",
    "session.execute(update(Row).values({Row.lock_owner: None}))",
    "values = {'lock_expires_at': None}",
    "row.lock_token = None",
    "item.row.lock_token = None",
    "setattr(row, 'lock_owner', name)",
    "connection.execute(text('UPDATE rows SET due_at = 1, lock_token = NULL'))",
]
TAKEN = [
    "from rowlock.rows.lease_values import unlocked_values",
    "from rowlock.rows import lease_values",
]


@pytest.mark.parametrize("text", VIOLATIONS)
@pytest.mark.parametrize("room", ["pipelines", "locks", "testing", "demo", "dialects/sqlite"])
def test_planted_lock_write(room: str, text: str) -> None:
    """The law above would pass whatever is written."""
    assert len(lock_writes(planted(text, f"src/rowlock/{room}/planted.py"))) == 1


@pytest.mark.parametrize("text", TAKEN)
@pytest.mark.parametrize("room", ["locks", "testing", "demo"])
def test_planted_ready_made_write(room: str, text: str) -> None:
    """A room that executes could write lock columns without spelling them."""
    assert len(lock_writes(planted(text, f"src/rowlock/{room}/planted.py"))) == 1
