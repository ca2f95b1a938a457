"""Screens of `top` that are one text: help, and the explanation of a row.

The one idea: a screen never waits within a key's handler. It is shown at once, and filled when the
answer comes; meanwhile every key works.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from rowlock.cli.answering import ANSWER_WITHIN_S, message_of
from rowlock.cli.top.view import Subject
from rowlock.containment import contained_task
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.shown import shown

HELP: Final = """\
rowlock top looks and never acts.

  r        look now
  e        explain the selected row: of a pipeline, the row that was parked
           first, or else the one that is longest at work
  up down  select         tab   the next pane
  ?        this help      esc   back
  q        quit           Ctrl-C quits, too

DUE       rows that are ready and free and whose time has come
OLDEST    for how long the first of them has been due
RUN       attempts that run now, of all replicas
QUEUE     rows that are claimed and wait for a worker, of how many at most
ROWS/S    outcomes a second in the last minute
10 MIN    the same, a bar for each minute since top was started
P95       the time that 95 of 100 attempts did not exceed, slowest replica
PARKED    rows that were set aside; a dash if no index counts them
"""
INDENT: Final = 5
"""Columns that a text does not have: margins, and the scroll bar."""


class TextScreen(Screen[None]):
    """Shows one text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def __init__(self, text: str, heading: str) -> None:
        super().__init__()
        self._text, self._heading = text, heading

    def compose(self) -> ComposeResult:
        """Return the text, in a frame that scrolls."""
        with VerticalScroll(id="paper") as paper:
            paper.border_title = Content(self._heading)
            paper.border_subtitle = "esc back  r refresh  q quit"
            yield Static(self._text, id="text", markup=False)

    def action_back(self) -> None:
        """Return to the screen below."""
        self.app.pop_screen()

    def action_refresh(self) -> None:
        """Nothing here changes."""

    def show(self, text: str) -> None:
        """Show another text."""
        self._text = text
        self.query_one("#text", Static).update(text)


class ExplainScreen(TextScreen):
    """Shows why a row waits, or who works on it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("e", "back", "back")]

    def __init__(self, insight: Insight, subject: Subject) -> None:
        row = f"{shown(subject.model)} {shown(subject.row_id)}"
        super().__init__("asking the database …", f"rowlock explain {row}")
        self._insight, self._subject = insight, subject
        self._answer: Explanation | None = None
        self._asking: asyncio.Task[Any] | None = None

    def on_mount(self) -> None:
        """Ask for the first time."""
        self.action_refresh()

    def on_unmount(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    def on_resize(self) -> None:
        """Fill the new width."""
        if self._answer is not None:
            self._show_answer(self._answer)

    def action_refresh(self) -> None:
        """Ask, unless that is under way."""
        if self._asking is None or self._asking.done():
            self._asking = contained_task(self._ask(), name="rowlock top: explain")

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                answer = await self._insight.explain(self._subject.model, self._subject.row_id)
        # Of the host's modules and database, whatever it is: it stands on the screen.
        except Exception as error:  # noqa: BLE001
            self.call_later(self.show, f"{message_of(error)}\n\nr asks again")
        else:
            self.call_later(self._show_answer, answer)

    def _show_answer(self, answer: Explanation) -> None:
        self._answer = answer
        self.show(answer.text(max(20, self.size.width - INDENT)))
