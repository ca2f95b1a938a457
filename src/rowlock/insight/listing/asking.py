"""Asks for one page of rows, and makes the answer of it; what the database refuses is an answer,
too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import AppError, describe
from rowlock.insight.facts import RowAsked
from rowlock.insight.listing.cursor import RowCursor
from rowlock.insight.listing.row_page import ListedState, RowPage
from rowlock.insight.listing.states import StateQuestion, read_page
from rowlock.insight.questions import ask_part
from rowlock.insight.shown import shown
from rowlock.insight.verdicts import Refused

PAGE_ROWS: Final = 50
"""How many rows a page has."""
PAGE_ROWS_MAX: Final = 200
"""Most rows that a page can have."""


def state_question(asked: RowAsked, state: str, *, after: str | None, limit: int) -> StateQuestion:
    """Return what is asked for a page.

    Raises:
        AppError: there is no such state, no page ends in `after`, or `limit` is out of bounds.
    """
    if state not in set(ListedState):
        states = ", ".join(ListedState)
        raise AppError(f"no rows are {shown(state, 40)}; there are {states}")
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise AppError(f"a page has 1 to {PAGE_ROWS_MAX} rows, not {limit}")
    leased = asked.pipeline.leased
    cursor = None if after is None else RowCursor.of(after, leased)
    owner, parts = asked.pipeline.name, asked.question.parts
    return StateQuestion(leased, parts, owner, ListedState(state), limit, cursor)


async def page_read(
    connection: AsyncConnection,
    *,
    asked: RowAsked,
    question: StateQuestion,
    redacted: Callable[[str], str],
) -> RowPage:
    """Return the page; joins the caller's transaction."""
    pipeline, model, state = question.owner, question.leased.name, question.state
    if asked.failure is not None:
        why = f"ready() raises {describe(asked.failure)}"
        return RowPage(pipeline, model, state, None, (), refused=why)
    read = partial(read_page, connection, question, redacted)
    found = await ask_part(connection, read, apart=True)
    if isinstance(found, Refused):
        return RowPage(pipeline, model, state, None, (), refused=found.why)
    at, rows, last, is_whole = found
    behind = None if last is None else last.text()
    return RowPage(pipeline, model, state, at, rows, behind, is_whole)
