"""The picture of ``top`` on a terminal, its keys, and its screens that are one text.

The one idea: Textual draws and reads keys; what is drawn is decided in ``top_look.py``, and asked
for in a task of its own. A screen never waits within a key's handler, so a database that hangs
costs no key.

Not here: the terminal as it was before (``windows.py``).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from rowlock.cli import top_look
from rowlock.cli.answering import ANSWER_WITHIN_S, INTERRUPTED, WELL, message_of
from rowlock.cli.top_look import Looker, LookState, RateHistory, Subject
from rowlock.clock import monotonic
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.shown import duration, shown
from rowlock.insight.status import PipelineStatus

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
INDENT: Final = 5  # columns for margins and the scroll bar


class TextScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def __init__(self, text: str, heading: str) -> None:
        super().__init__()
        self._text, self._heading = text, heading

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="paper") as paper:
            paper.border_title = Content(self._heading)
            paper.border_subtitle = "esc back  r refresh  q quit"
            yield Static(self._text, id="text", markup=False)

    def action_back(self) -> None:
        self.app.pop_screen()

    def action_refresh(self) -> None: ...

    def show(self, text: str) -> None:
        self._text = text
        self.query_one("#text", Static).update(text)


class ExplainScreen(TextScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("e", "back", "back")]

    def __init__(self, insight: Insight, subject: Subject) -> None:
        row = f"{shown(subject.model)} {shown(subject.row_id)}"
        super().__init__("asking the database …", f"rowlock explain {row}")
        self._insight, self._subject = insight, subject
        self._answer: Explanation | None = None
        self._asking: asyncio.Task[Any] | None = None

    def on_mount(self) -> None:
        self.action_refresh()

    def on_unmount(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def on_resize(self) -> None:
        if self._answer is not None:
            self._show_answer(self._answer)

    def action_refresh(self) -> None:
        """Ask, unless that is under way."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="rowlock top: explain")

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                answer = await self._insight.explain(self._subject.model, self._subject.row_id)
        # Any error of the host's modules and database: the screen shows it.
        except Exception as error:  # noqa: BLE001
            self.call_later(self.show, f"{message_of(error)}\n\nr asks again")
        else:
            self.call_later(self._show_answer, answer)

    def _show_answer(self, answer: Explanation) -> None:
        self._answer = answer
        self.show(answer.text(max(20, self.size.width - INDENT)))


TICK_S: Final = 1.0  # seconds between two updates of ages
OLD_AFTER_S: Final = 5.0  # seconds after which a question that is under way is shown
KEYS: Final = "r refresh  ? help  q quit"
CSS: Final = """
#frame, #paper { border: round $primary; }
#table { height: 1fr; }
#panes { height: 9; display: none; }
#panes OptionList { width: 1fr; height: 1fr; border: round $primary; padding: 0; }
#panes OptionList { text-wrap: nowrap; text-overflow: ellipsis; }
#panes OptionList:focus { border: round $accent; }
#notice { display: none; color: $text-error; height: auto; max-height: 3; }
#small { display: none; width: 1fr; height: 1fr; content-align: center middle; }
.with-panes #panes { display: block; }
.with-notice #notice { display: block; }
.small #frame { display: none; }
.small #small { display: block; }
"""


class TopApp(App[int]):
    """The picture; its result is the exit code, and `failure` the error that ended it."""

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    # Those of priority work on every screen, whatever has the focus.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", f"leave({WELL})", "quit", priority=True),
        Binding("ctrl+c", f"leave({INTERRUPTED})", priority=True),
        Binding("question_mark", "help", "help", priority=True),
        Binding("r", "refresh_all", "refresh", priority=True),
    ]

    def __init__(self, insight: Insight) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._insight = insight
        # By way of the queue of messages: what the drawing raises there is not lost.
        self._looker = Looker(insight, self._hear)
        self._rates = RateHistory()
        self._looking: asyncio.Task[Any] | None = None

    def get_default_screen(self) -> Screen[None]:
        return LookScreen(self._insight, self._rates)

    def on_mount(self) -> None:
        self._looking = asyncio.create_task(self._looker.run(), name="rowlock top: look")
        self.set_interval(TICK_S, self._heed_size)

    def stop_looking(self) -> None:
        """Cancel the task that looks, without waiting for its question."""
        if self._looking is not None:
            self._looking.cancel()

    def action_leave(self, code: int) -> None:
        self.exit(code)

    def action_help(self) -> None:
        if isinstance(self.screen, TextScreen):
            self.pop_screen()
        self.push_screen(TextScreen(HELP, "help"))

    def action_refresh_all(self) -> None:
        """Look now; an explanation is asked again."""
        self._looker.hurry()
        if isinstance(self.screen, TextScreen):
            self.screen.action_refresh()

    def _hear(self, seen: LookState) -> None:
        self.call_later(self._saw, seen)

    def _saw(self, seen: LookState) -> None:
        if seen.look is not None and seen.asking_since is None and not seen.error:
            rates = [(one.pipeline, one.told.settled_s) for one in seen.look.status.pipelines]
            self._rates.add(seen.looked_at, rates)
        for screen in self.screen_stack:
            if isinstance(screen, LookScreen):
                screen.see(seen)

    def _heed_size(self) -> None:
        # The handler of a signal may be interrupted by that of the next one, and then tell the
        # older size last: of two quick changes of the window, the last would be lost.
        size = Size(*shutil.get_terminal_size())
        if not self.is_headless and size != self.size:
            self.post_message(events.Resize(size, size))

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print a traceback with the values of all variables, and secrets among them.
        self.failure = self.failure or error
        self.exit()


class LookScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("e", "explain", "explain")]

    def __init__(self, insight: Insight, rates: RateHistory) -> None:
        super().__init__()
        self._insight, self._rates = insight, rates
        self._seen = LookState()
        self._panes: dict[str, tuple[top_look.PaneLine, ...]] = {}
        self._has_parts = False

    def compose(self) -> ComposeResult:
        with Vertical(id="frame"):
            yield Static(id="notice", markup=False)
            yield DataTable(id="table", cursor_type="row")
            with Horizontal(id="panes"):
                for name, heading in (("longest", "longest at work"), ("trouble", "trouble")):
                    pane = OptionList(id=name, markup=False)
                    pane.border_title, pane.border_subtitle = heading, "e explain"
                    yield pane
        yield Static(top_look.TOO_SMALL, id="small", markup=False)

    def on_mount(self) -> None:
        self._has_parts = True
        self.set_interval(TICK_S, self._tick)
        self._draw()

    def on_resize(self) -> None:
        width, height = self.size
        self.set_class(width < top_look.WIDTH_MIN or height < top_look.HEIGHT_MIN, "small")
        self.set_class(height >= top_look.PANES_FROM and width >= top_look.NARROW, "with-panes")
        self._draw()

    def see(self, seen: LookState) -> None:
        is_news = seen.look is not self._seen.look
        self._seen = seen
        if is_news:
            self._draw()
        elif self._has_parts:
            self._tick()

    def action_explain(self) -> None:
        subject = self._selected()
        if subject is None:
            self.notify("No row is selected that could be explained.", markup=False)
        else:
            self.app.push_screen(ExplainScreen(self._insight, subject))

    def on_data_table_row_selected(self) -> None:
        self.action_explain()

    def on_option_list_option_selected(self) -> None:
        self.action_explain()

    def _selected(self) -> top_look.Subject | None:
        look, focused = self._seen.look, self.focused
        if look is None:
            return None
        if isinstance(focused, OptionList):
            lines, place = self._panes.get(focused.id or "", ()), focused.highlighted
            return None if place is None or place >= len(lines) else lines[place].subject
        place = self._table.cursor_row
        pipelines = look.status.pipelines
        return (
            top_look.first_subject(look, pipelines[place].pipeline) if pipelines[place:] else None
        )

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#table", DataTable)

    def _draw(self) -> None:
        if not self._has_parts:
            return
        look = self._seen.look
        if look is not None:
            self._fill_table(look, look.status.pipelines)
            self._fill("longest", top_look.longest_at_work(look))
            self._fill("trouble", top_look.trouble(look))
        self._tick()

    def _tick(self) -> None:
        seen, now = self._seen, monotonic()
        text = _notice(seen, now)
        self.query_one("#notice", Static).update(text)
        self.set_class(bool(text), "with-notice")
        title = "rowlock top" if seen.look is None else top_look.title(seen.look)
        room = self.size.width - len(title) - len(KEYS) - 8
        keys = f" {'─' * room} {KEYS}" if room > 0 else ""
        self.query_one("#frame").border_title = Content(title + keys)

    def _fill_table(self, look: top_look.Look, pipelines: Sequence[PipelineStatus]) -> None:
        table, width, now = self._table, self.size.width, monotonic()
        shown, place = top_look.columns(width), self._table.cursor_row
        table.clear(columns=True)
        for name in shown:
            table.add_column(Text(top_look.heading(name, width), justify=_side(name)))
        for one in pipelines:
            cells = top_look.cells(look, one, rates=self._rates, now=now)
            table.add_row(*(Text(cells[name], justify=_side(name)) for name in shown))
        if place < len(pipelines):
            table.move_cursor(row=place)

    def _fill(self, name: str, lines: tuple[top_look.PaneLine, ...]) -> None:
        pane = self.query_one(f"#{name}", OptionList)
        place = pane.highlighted
        self._panes[name] = lines
        pane.set_options(
            Option(Text(line.text, no_wrap=True, overflow="ellipsis")) for line in lines
        )
        if lines:
            pane.highlighted = min(place or 0, len(lines) - 1)


def _side(column: str) -> Literal["left", "right"]:
    return "right" if column in top_look.RIGHT else "left"


def _notice(seen: LookState, now: float) -> str:
    if seen.error:
        since, age = duration(now - seen.failing_since), duration(now - seen.looked_at)
        old = "" if seen.look is None else f"; what stands here is {age} old"
        return f"! {seen.error} (for {since}{old})"
    if seen.asking_since is not None and now - seen.asking_since > OLD_AFTER_S:
        return f"asking the database for {duration(now - seen.asking_since)}"
    return "asking the database …" if seen.look is None else ""
