"""Statements in a host's session, past what its class makes of `execute`: SQLModel's marks it as
old, with a warning at each call that a host's tests may turn into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Executable, Result
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

_BUFFERED = {"prebuffer_rows": True}
"""Behind the call no more rows can be fetched: as of `AsyncSession.execute`."""


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
        execution_options=_BUFFERED | dict(execution_options or {}),
    )
