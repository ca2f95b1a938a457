"""``top``: what it shows of one look, the rates that it has seen, how it looks again and again, and
the picture with its keys.

The one idea: the next look begins a rest after the end of the one before, and the rest grows with
what the look took. So a slow database is asked less often, and questions never pile up. Textual
draws and reads keys. A screen never waits within a key's handler, so a database that hangs costs no
key. Texts of rows and reports have passed `shown`, so no control character reaches the terminal.

Not here: the terminal as it was before (``windows.py``).
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC
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

from rowlock.cli.answering import ANSWER_WITHIN_S, INTERRUPTED, WELL, message_of
from rowlock.cli.commands import status_in_time
from rowlock.clock import monotonic
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.replicas import ENDLESS, ReplicaState, summed
from rowlock.insight.shown import duration, shown
from rowlock.insight.status import (
    NARROW_COLUMNS,
    RIGHT,
    PipelineStatus,
    Status,
    cells_of,
    count_text,
)

# ---------------------------------------------------------------- rates


MINUTES: Final = 10  # minutes of a sparkline, a character each
MINUTE_S: Final = 60.0
SAMPLES_MAX: Final = 1_200
PIPELINES_MAX: Final = 1_000
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class RateHistory:
    _samples: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, rates: Iterable[tuple[str, float | None]]) -> None:
        for pipeline, rows_s in rates:
            if rows_s is None:
                continue
            if pipeline in self._samples or len(self._samples) < PIPELINES_MAX:
                samples = self._samples.setdefault(pipeline, deque(maxlen=SAMPLES_MAX))
                samples.append((at, rows_s))

    def picture(self, pipeline: str, now: float) -> str:
        return sparkline(per_minute(self._samples.get(pipeline, ()), now))


def per_minute(samples: Iterable[tuple[float, float]], now: float) -> list[float | None]:
    """Return the mean of each minute, the oldest first; None for one without samples."""
    minutes: list[list[float]] = [[] for _ in range(MINUTES)]
    for at, rows_s in samples:
        age = int((now - at) // MINUTE_S)
        if 0 <= age < MINUTES:
            minutes[MINUTES - 1 - age].append(rows_s)
    return [sum(each) / len(each) if each else None for each in minutes]


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, by its share of the greatest; a space for None."""
    greatest = max((value for value in values if value is not None), default=0.0)
    return "".join(_bar(value, greatest) for value in values)


def _bar(value: float | None, greatest: float) -> str:
    if value is None:
        return " "
    if greatest <= 0 or value <= 0:
        return _BARS[0]
    return _BARS[min(len(_BARS) - 1, int(value / greatest * len(_BARS)))]


# ---------------------------------------------------------------- one look


WIDTH_MIN, HEIGHT_MIN = 40, 10  # a smaller terminal shows nothing but that it is too small
NARROW: Final = 60  # below so many columns the table has four of its columns
WIDE: Final = 100  # from so many columns on the table is whole
PANES_FROM: Final = 16  # from so many lines on there is room below the table
LONGEST_MAX: Final = 20
NAME_CHARS_MAX: Final = 28
NAMED_MAX: Final = 3  # how many parked rows a line of trouble names
TOO_SMALL: Final = f"make me larger: {WIDTH_MIN} × {HEIGHT_MIN} at least"

COLUMNS: Final = (
    *("PIPELINE", "DUE", "OLDEST", "RUN", "QUEUE", "ROWS/S", "10 MIN", "P95", "PARKED", "STATE"),
)
_LEFT_OUT: Final = frozenset({"10 MIN", "P95"})


@dataclass(frozen=True, slots=True)
class Subject:
    model: str
    row_id: str


@dataclass(frozen=True, slots=True)
class PaneLine:
    text: str
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class Look:
    status: Status
    models: Mapping[str, str]


def title(look: Look) -> str:
    status = look.status
    at = "" if status.at is None else f" · {status.at.astimezone(UTC):%H:%M:%S}"
    return f"{shown(status.database)} · {status.replicas.count_text}{at}"


def columns(width: int) -> tuple[str, ...]:
    if width < NARROW:
        return NARROW_COLUMNS
    return tuple(name for name in COLUMNS if width >= WIDE or name not in _LEFT_OUT)


def heading(column: str, width: int) -> str:
    return "NAME" if column == "PIPELINE" and width < NARROW else column


def cells(look: Look, one: PipelineStatus, *, rates: RateHistory, now: float) -> dict[str, str]:
    """Return the line of a pipeline, by column; `now` is a time of the monotonic clock."""
    replicas = look.status.replicas
    running = summed(replicas.reports_of(one.pipeline), "running")
    return cells_of(one, look.status.at) | {
        "PIPELINE": shown(one.pipeline, NAME_CHARS_MAX),
        "RUN": count_text(None if running is None else int(running)),
        "QUEUE": replicas.queue(one.pipeline),
        "10 MIN": rates.picture(one.pipeline, now),
    }


def longest_at_work(look: Look) -> tuple[PaneLine, ...]:
    """Return the attempts that have run for longest, those without an end behind all others."""
    found: list[tuple[bool, float, PaneLine]] = []
    for replica in look.status.replicas.live:
        for item in replica.items:
            if item.get("state") == "running":
                report = replica.pipelines.get(str(item.get("pipeline")))
                is_endless = isinstance(report, Mapping) and report.get(ENDLESS) is True
                seconds = (summed([item], "since_s") or 0.0) + max(0.0, replica.seen_s)
                line = _line_of(look, seconds=seconds, replica=replica, item=item)
                found.append((is_endless, -seconds, line))
    found.sort(key=lambda one: one[:2])
    return tuple(line for _, _, line in found[:LONGEST_MAX])


def trouble(look: Look) -> tuple[PaneLine, ...]:
    away = (PaneLine(shown(one.text, 500)) for one in look.status.away)
    return (*away, *_told(look), *_parked(look))


def first_subject(look: Look, pipeline: str) -> Subject | None:
    """Return the row of a pipeline to explain first: a parked one, or else the longest at work."""
    model = look.models.get(pipeline, "")
    for one in look.status.pipelines:
        if one.pipeline == pipeline and one.counts.parked_keys:
            return Subject(model, one.counts.parked_keys[0])
    of_it = (line.subject for line in longest_at_work(look))
    return next((one for one in of_it if one is not None and one.model == model), None)


def _told(look: Look) -> Iterator[PaneLine]:
    for one in look.status.pipelines:
        # Parked rows that are named have a line of their own.
        named = one.parked_text if one.counts.parked_keys else ""
        model, key = look.models.get(one.pipeline), one.first_key
        subject = None if model is None or key is None else Subject(model, key)
        for trouble in one.troubles:
            if trouble != named:
                yield PaneLine(shown(f"{one.pipeline}: {trouble}", 500), subject)


def _parked(look: Look) -> Iterator[PaneLine]:
    # Pipelines of one model have the same parked rows.
    of_models = {look.models.get(one.pipeline): one for one in look.status.pipelines}
    for one in of_models.values():
        keys, model = one.counts.parked_keys, look.models.get(one.pipeline, "")
        if not one.counts.parked or not keys:
            continue
        named = ", ".join(shown(key, 40) for key in keys[:NAMED_MAX])
        more = " …" if one.counts.parked > NAMED_MAX else ""
        text = f"{count_text(one.counts.parked)} parked: {shown(model)} {named}{more}"
        yield PaneLine(text, Subject(model, keys[0]))


def _line_of(
    look: Look, *, seconds: float, replica: ReplicaState, item: Mapping[str, Any]
) -> PaneLine:
    pipeline, row_id = str(item.get("pipeline")), str(item.get("row_id"))
    model = look.models.get(pipeline)
    name = f"{shown(model or pipeline, 40)} {shown(row_id, 40)}"
    attempt = item.get("attempt")
    told = "" if attempt is None else f"  attempt {shown(attempt, 10)}"
    text = f"{name}  {shown(replica.name, 24)}  {duration(seconds)}{told}"
    return PaneLine(text, None if model is None else Subject(model, row_id))


# ---------------------------------------------------------------- looking again and again


EVERY_S: Final = 2.0  # the rest between two looks, in seconds
REST_FACTOR: Final = 2.0  # the rest is at least so many times as long as the look


@dataclass(frozen=True, slots=True)
class LookState:
    """The state of the picture; times are of the monotonic clock.

    `look` is the last that succeeded, and `failing_since` the begin of the first failed look since.
    """

    look: Look | None = None
    looked_at: float = 0.0
    asking_since: float | None = None
    error: str = ""
    failing_since: float = 0.0


async def look_once(insight: Insight) -> Look:
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status = await status_in_time(insight)
    return Look(status, {name: one.leased.name for name, one in insight.pipelines.items()})


class Looker:
    """Looks until it is cancelled, and tells whenever something has changed."""

    def __init__(self, insight: Insight, tell: Callable[[LookState], None]) -> None:
        self.seen = LookState()
        self._insight, self._tell = insight, tell
        self._wanted = asyncio.Event()

    def hurry(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        while True:
            begun = monotonic()
            self._know(replace(self.seen, asking_since=begun))
            await self._look(begun)
            self._wanted.clear()
            rest_s = max(EVERY_S, REST_FACTOR * (monotonic() - begun))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wanted.wait()

    async def _look(self, begun: float) -> None:
        try:
            look = await look_once(self._insight)
        # Any error of the host's modules and database: the next look may succeed.
        except Exception as error:  # noqa: BLE001
            since = self.seen.failing_since if self.seen.error else begun
            failed = replace(self.seen, error=message_of(error), failing_since=since)
            self._know(replace(failed, asking_since=None))
        else:
            self._know(LookState(look, looked_at=monotonic()))

    def _know(self, seen: LookState) -> None:
        self.seen = seen
        self._tell(seen)


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
    # Priority bindings work on every screen, wherever the focus is.
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
        self._panes: dict[str, tuple[PaneLine, ...]] = {}
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
        yield Static(TOO_SMALL, id="small", markup=False)

    def on_mount(self) -> None:
        self._has_parts = True
        self.set_interval(TICK_S, self._tick)
        self._draw()

    def on_resize(self) -> None:
        width, height = self.size
        self.set_class(width < WIDTH_MIN or height < HEIGHT_MIN, "small")
        self.set_class(height >= PANES_FROM and width >= NARROW, "with-panes")
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

    def _selected(self) -> Subject | None:
        look, focused = self._seen.look, self.focused
        if look is None:
            return None
        if isinstance(focused, OptionList):
            lines, place = self._panes.get(focused.id or "", ()), focused.highlighted
            return None if place is None or place >= len(lines) else lines[place].subject
        place = self._table.cursor_row
        pipelines = look.status.pipelines
        return first_subject(look, pipelines[place].pipeline) if pipelines[place:] else None

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#table", DataTable)

    def _draw(self) -> None:
        if not self._has_parts:
            return
        look = self._seen.look
        if look is not None:
            self._fill_table(look, look.status.pipelines)
            self._fill("longest", longest_at_work(look))
            self._fill("trouble", trouble(look))
        self._tick()

    def _tick(self) -> None:
        seen, now = self._seen, monotonic()
        text = _notice(seen, now)
        self.query_one("#notice", Static).update(text)
        self.set_class(bool(text), "with-notice")
        heads = "rowlock top" if seen.look is None else title(seen.look)
        room = self.size.width - len(heads) - len(KEYS) - 8
        keys = f" {'─' * room} {KEYS}" if room > 0 else ""
        self.query_one("#frame").border_title = Content(heads + keys)

    def _fill_table(self, look: Look, pipelines: Sequence[PipelineStatus]) -> None:
        table, width, now = self._table, self.size.width, monotonic()
        names, place = columns(width), self._table.cursor_row
        table.clear(columns=True)
        for name in names:
            table.add_column(Text(heading(name, width), justify=_side(name)))
        for one in pipelines:
            line = cells(look, one, rates=self._rates, now=now)
            table.add_row(*(Text(line[name], justify=_side(name)) for name in names))
        if place < len(pipelines):
            table.move_cursor(row=place)

    def _fill(self, name: str, lines: tuple[PaneLine, ...]) -> None:
        pane = self.query_one(f"#{name}", OptionList)
        place = pane.highlighted
        self._panes[name] = lines
        pane.set_options(
            Option(Text(line.text, no_wrap=True, overflow="ellipsis")) for line in lines
        )
        if lines:
            pane.highlighted = min(place or 0, len(lines) - 1)


def _side(column: str) -> Literal["left", "right"]:
    return "right" if column in RIGHT else "left"


def _notice(seen: LookState, now: float) -> str:
    if seen.error:
        since, age = duration(now - seen.failing_since), duration(now - seen.looked_at)
        old = "" if seen.look is None else f"; what stands here is {age} old"
        return f"! {seen.error} (for {since}{old})"
    if seen.asking_since is not None and now - seen.asking_since > OLD_AFTER_S:
        return f"asking the database for {duration(now - seen.asking_since)}"
    return "asking the database …" if seen.look is None else ""
