"""Asks a database for the plan of a SELECT, whether its values stand in the text or are bound.

Not here: what a plan says (the ``dialects``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from sqlalchemy import CursorResult, Dialect, Select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement, Executable

Query: TypeAlias = "str | Select[Any]"
"""A SELECT with its values in its text; or one whose values are bound, as some types have no
literals.
"""


def spellings_of(query: Select[Any], dialect: Dialect) -> Iterator[Query]:
    """Yield a SELECT first with its values in the text: an index of some rows is compared with
    them. Then with its values bound, as a claim has them: some types have no literals, and a
    literal may be of another type than its value.
    """
    # Types of the host's raise what they like.
    with suppress(Exception):
        yield str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    yield query


class _Explained(Executable, ClauseElement):
    inherit_cache = False

    def __init__(self, query: Select[Any], prefix: str, instead: tuple[str, str]) -> None:
        self.query, self.prefix, self.instead = query, prefix, instead


@compiles(_Explained)
def _compiled(element: _Explained, compiler: Any, **how: Any) -> str:
    text: str = compiler.process(element.query, **how)
    return element.prefix + text.replace(*element.instead, 1)


async def plan_of(
    connection: AsyncConnection, query: Query, *, prefix: str, instead: tuple[str, str] = ("", "")
) -> CursorResult[Any]:
    """Return what the database says of the plan of `query`; joins the caller's transaction.

    Args:
        connection: in a transaction.
        query: whose plan it is.
        prefix: what asks for a plan, with a space at its end.
        instead: a text of the query, and what stands there instead.
    """
    if isinstance(query, str):
        return await connection.exec_driver_sql(prefix + query.replace(*instead, 1))
    return await connection.execute(_Explained(query, prefix, instead))
