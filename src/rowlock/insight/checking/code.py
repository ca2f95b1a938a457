"""The migration that mends findings, as text: columns and indexes as calls of Alembic's and
SQLAlchemy's alone, so that it runs in three years without us. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Dialect, Index, Table
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ClauseElement, ColumnClause, UnaryExpression
from sqlalchemy.types import TypeEngine

from rowlock.insight.checking.finding import Finding, Level, Mend
from rowlock.spi import ROWS, innermost


@dataclass(frozen=True, slots=True)
class IndexWanted:
    """An index that is to be there; `expressions` are those of `parts` that are no plain names."""

    name: str
    parts: tuple[str, ...]
    expressions: frozenset[str] = frozenset()
    where: str | None = None
    is_unique: bool = False

    @property
    def text(self) -> str:
        return f"({', '.join(self.parts)})" + ("" if self.where is None else f" WHERE {self.where}")


def type_code(type_: TypeEngine[Any]) -> str:
    return f"sa.{innermost(type_)!r}"


def text_code(sql: str) -> str:
    """Return SQL as a migration writes it: a colon begins no parameter."""
    escaped = sql.replace(":", r"\:")
    return f"sa.text({escaped!r})"


def default_sql(column: Column[Any], dialect: Dialect) -> str | None:
    default = getattr(column.server_default, "arg", None)
    if isinstance(default, ClauseElement):
        return sql_of(default, dialect)
    return None if default is None else f"'{default}'"


def column_code(column: Column[Any], dialect: Dialect, *, with_key: bool = False) -> str:
    """Return a column as ``op.add_column`` takes it; `with_key`, as ``op.create_table`` does."""
    default = default_sql(column, dialect)
    parts = [repr(column.name), type_code(column.type)]
    parts += [] if default is None else [f"server_default={text_code(default)}"]
    parts += ["primary_key=True"] if with_key and column.primary_key else []
    return f"sa.Column({', '.join(parts)}, nullable={bool(column.nullable)})"


def schema_code(table: Table) -> str:
    return "" if table.schema is None else f", schema={table.schema!r}"


def sql_of(clause: ClauseElement, dialect: Dialect) -> str:
    """Return an expression as the SQL of an index: with its values, without its table."""
    nothing: Any = None
    compiler: Any = dialect.ddl_compiler(dialect, nothing).sql_compiler
    # A driver whose parameters begin with % wants it doubled, and a migration is no statement yet.
    compiler.preparer = copy(compiler.preparer)
    compiler.preparer._double_percents = False
    return " ".join(str(compiler.process(clause, include_table=False, literal_binds=True)).split())


def index_of(index: Index, dialect: Dialect) -> IndexWanted:
    where = index.dialect_kwargs.get(f"{dialect.name}_where")
    texts = [_part(part, dialect) for part in index.expressions]
    return IndexWanted(
        str(index.name),
        tuple(sql for sql, _ in texts),
        frozenset(sql for sql, is_expression in texts if is_expression),
        None if where is None else where if isinstance(where, str) else sql_of(where, dialect),
        bool(index.unique),
    )


def _part(part: Any, dialect: Dialect) -> tuple[str, bool]:
    if isinstance(part, str):
        return part, False
    if isinstance(part, ColumnClause) and not part.is_literal:
        return part.name, False
    sql = sql_of(part, dialect)
    is_plain = isinstance(part, UnaryExpression) and part.modifier is operators.nulls_first_op
    # Where nulls come first by themselves nothing is said of them.
    return (part.element.name, False) if is_plain and " " not in sql else (sql, True)


def create_index(table: Table, wanted: IndexWanted, dialect: Dialect) -> str:
    """Return the call that builds an index, concurrently if that is possible."""
    columns = ", ".join(
        text_code(part) if part in wanted.expressions else repr(part) for part in wanted.parts
    )
    where = "" if wanted.where is None else f", {dialect.name}_where={text_code(wanted.where)}"
    unique = f", unique={wanted.is_unique}{schema_code(table)}{_concurrently(dialect)}"
    return f"op.create_index({wanted.name!r}, {table.name!r}, [{columns}]{unique}{where})"


def drop_index(table: Table, name: str, dialect: Dialect, *, if_exists: bool = False) -> str:
    """Return the call that drops an index, concurrently if that is possible."""
    options = f"{schema_code(table)}{_concurrently(dialect)}"
    exists = ", if_exists=True" if if_exists else ""
    return f"op.drop_index({name!r}, table_name={table.name!r}{options}{exists})"


def added(table: Table, wanted: IndexWanted, dialect: Dialect) -> Mend:
    """Return the steps that add an index; they first drop what an interrupted build has left."""
    is_concurrent = bool(_concurrently(dialect))
    ruin = (drop_index(table, wanted.name, dialect, if_exists=True),) if is_concurrent else ()
    return Mend(
        (*ruin, create_index(table, wanted, dialect)),
        (drop_index(table, wanted.name, dialect),),
        commits=is_concurrent,
    )


def executed(sql: str) -> str:
    return f"op.execute({text_code(sql)})"


def _concurrently(dialect: Dialect) -> str:
    options = ROWS.on(dialect.name).concurrently or {}
    return "".join(f", {name}={value!r}" for name, value in options.items())


COMMENT_WIDTH: Final = 96
_INDENT: Final = "    "


def migration_text(found: Sequence[Finding]) -> str:
    """Return a migration that mends the findings; those it cannot mend are comments in it.

    Steps outside of a transaction come last: they commit all that came before.
    """
    mends = sorted((mend for one in found for mend in one.mends), key=lambda mend: mend.commits)
    unmended = [one for one in found if not one.mends and one.level is not Level.NOTE]
    up = [line for mend in mends for line in _lines(mend.up, commits=mend.commits)]
    down = [line for mend in reversed(mends) for line in _lines(mend.down, commits=mend.commits)]
    comments = [
        row
        for one in unmended
        for row in textwrap.wrap(
            f"to be mended by hand: {one.about}: {one.text}",
            COMMENT_WIDTH - len(_INDENT),
            initial_indent="# ",
            subsequent_indent="# ",
        )
    ]
    return "\n".join(
        [
            '"""What `rowlock check` found."""',
            "",
            "import sqlalchemy as sa",
            "from alembic import op",
            "",
            *_function("upgrade", [*comments, *up]),
            *_function("downgrade", down),
        ]
    )


def _lines(steps: Sequence[str], *, commits: bool) -> list[str]:
    if not commits or not steps:
        return list(steps)
    return ["with op.get_context().autocommit_block():", *(_INDENT + step for step in steps)]


def _function(name: str, lines: Sequence[str]) -> list[str]:
    is_empty = all(line.startswith("#") for line in lines)
    body = [*lines, *(["pass"] if is_empty else [])]
    return ["", f"def {name}() -> None:", *(_INDENT + line for line in body), ""]
