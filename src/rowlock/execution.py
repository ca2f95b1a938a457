"""Statements: kept as long as their table, and executed in a host's session past what its class
makes of `execute`: SQLModel's marks it as old, with a warning at each call that a host's tests may
turn into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Executable, Result, Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

StatementT = TypeVar("StatementT")


async def execute(
    session: AsyncSession,
    statement: Executable,
    parameters: Any = None,
    *,
    bind_arguments: dict[str, Any] | None = None,
    execution_options: Mapping[str, Any] | None = None,
) -> Result[Any]:
    """Execute `statement` in the transaction of `session`, as SQLAlchemy's own session does."""
    run: Callable[..., Result[Any]] = Session.execute
    return await session.run_sync(
        run,
        statement,
        parameters,
        bind_arguments=bind_arguments,
        # Behind the call no more rows can be fetched: as of `AsyncSession.execute`.
        execution_options={"prebuffer_rows": True, **(execution_options or {})},
    )


_KEPT = "rowlock_kept_statements"


def kept_statement(table: Table, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
    """Return what `build` gives, built once for each `key`, of which there are few, and kept as
    long as the table: building a statement takes longer than executing it. What differs from one
    execution to the next is bound by name.
    """
    # Not in its `info`, which Alembic writes into migrations.
    kept = vars(table).setdefault(_KEPT, {})
    if key not in kept:
        kept[key] = build()
    statement: StatementT = kept[key]
    return statement
