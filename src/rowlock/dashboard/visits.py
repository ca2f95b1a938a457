"""One request: its viewer, its target and the making of its answer, with the addresses and
templates of pages, and with answers that several viewers share; and the stream of server-sent
events, one a tab, that keeps an open page up to date.

The one idea: a template escapes everything, and everything of a row is shown as what it is. A key
is text of unknown origin: a browser takes ``..`` out of a path, escaped or not, and frameworks
decode slashes; so only plain keys stand in the path of an address, and all others behind the
question mark.

A stream asks for its part of a page every two seconds, and streams of one part share its answer. A
page learns that its database or server is away, by an event or by silence; it never goes on to call
itself live.

Not here: which values a page has (``pages.py``).
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode

import anyio
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from rowlock.clock import monotonic
from rowlock.dashboard.guarding import (
    Gatekeeper,
    Viewer,
    ViewerAction,
    fresh_token,
    keep_token,
    refusal_of,
    token_of,
)
from rowlock.errors import ConfigurationError
from rowlock.insight.asking import wanted_within
from rowlock.insight.insight import Insight
from rowlock.insight.observer import Observer
from rowlock.insight.replicas import NOTHING
from rowlock.insight.shown import ago, clock_time, duration, row_command, shown
from rowlock.insight.status import count_text, decimal_text

if TYPE_CHECKING:
    # A wing may have been left out.
    from rowlock.graph import StandingGraph
    from rowlock.streams import Streams


# ---------------------------------------------------------------- pages that are kept up to date


STREAMS_MAX: Final = 64
ROWS_WATCHED_MAX: Final = 16  # most different rows that are watched at once
STREAM_S_MAX: Final = 60.0  # seconds until the page opens a new stream, which is authorized anew
LIVE_S: Final = 2.0  # the rest between two looks, in seconds
PART_S_MAX: Final = 4.0  # longest look, in seconds; then the page is told that it is not live
SEND_S_MAX: Final = 5.0  # longest time in which a browser takes what is sent, in seconds
GRACE_S: Final = 3.0  # how long a stream may take to end when the server does, in seconds
RETRY_MS: Final = 1_000

MakePart = Callable[[], Awaitable[str]]


class LiveStreams:
    def __init__(self) -> None:
        self._topics: Counter[str] = Counter()
        self._process = os.getpid()

    @property
    def is_full(self) -> bool:
        return self._open().total() >= STREAMS_MAX

    def _open(self) -> Counter[str]:
        if self._process != os.getpid():
            # A child that was forked has none of its parent's streams.
            self._topics, self._process = Counter(), os.getpid()
        return self._topics

    def enter(self, topic: str, *, is_row: bool) -> bool:
        topics = self._open()
        rows = sum(1 for one in topics if one.startswith("row:"))
        if self.is_full or (is_row and topic not in topics and rows >= ROWS_WATCHED_MAX):
            return False
        topics[topic] += 1
        return True

    def leave(self, topic: str) -> None:
        topics = self._open()
        topics[topic] -= 1
        if topics[topic] <= 0:
            del topics[topic]


class LiveResponse:
    """A stream of one topic, or the answer that there is no room for it."""

    def __init__(self, streams: LiveStreams, topic: str, make: MakePart) -> None:
        self._streams, self._topic, self._make = streams, topic, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the page is closed, the server ends or the time is over."""
        # Nothing is awaited between the look at the room and the count.
        if not self._streams.enter(self._topic, is_row=self._topic.startswith("row:")):
            full = PlainTextResponse("too many pages are open", 503, {"retry-after": "10"})
            await full(scope, receive, send)
            return
        try:
            ended = anyio.Event()
            stream = EventSourceResponse(
                live_events(self._make, ended),
                ping=0,
                send_timeout=SEND_S_MAX,
                shutdown_event=ended,
                shutdown_grace_period=GRACE_S,
            )
            # A browser that takes nothing is no error of the host's; the server closes the rest.
            with suppress(SendTimeoutError):
                await stream(scope, receive, send)
        finally:
            self._streams.leave(self._topic)


async def live_events(make: MakePart, ended: anyio.Event) -> AsyncIterator[ServerSentEvent]:
    """Yield the part when it has changed, else a beat, or why there is none."""
    ends, last = monotonic() + STREAM_S_MAX, None
    yield ServerSentEvent(event="beat", data="", retry=RETRY_MS)
    while monotonic() < ends and not ended.is_set():
        try:
            with wanted_within(PART_S_MAX):
                async with asyncio.timeout(PART_S_MAX):
                    part = await make()
        except Exception as error:  # noqa: BLE001 - of the host's database, whatever it is
            last = None
            yield ServerSentEvent(event="stale", data=refusal_of(error).sentence)
        else:
            yield ServerSentEvent(event="beat", data="") if part == last else ServerSentEvent(part)
            last = part
        with anyio.move_on_after(LIVE_S):
            await ended.wait()


# ---------------------------------------------------------------- addresses


_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True)
class PageAddresses:
    """Addresses below the path at which the dashboard is mounted, without a slash at its end."""

    base: str

    def pipelines(self) -> str:
        return f"{self.base}/"

    def page(self, name: str) -> str:
        return f"{self.base}/{name}"

    def static(self, name: str) -> str:
        return f"{self.base}/static/{name}"

    def pipeline(self, name: str) -> str:
        return f"{self.base}/pipelines/{quote(name, safe='')}"

    def rows(self, pipeline: str, state: str, after: str | None = None) -> str:
        asked = {"state": state} | ({} if after is None else {"after": after})
        return f"{self.pipeline(pipeline)}/rows?{urlencode(asked)}"

    def row(self, model: str, row_id: str) -> str:
        path = self.model(model)
        if _PLAIN.fullmatch(row_id):
            return f"{path}/{row_id}"
        return f"{path}?{urlencode({'id': row_id})}"

    def model(self, model: str) -> str:
        return f"{self.base}/rows/{quote(model, safe='')}"

    def act(self, action: str, **asked: str) -> str:
        return f"{self.base}/act/{action}?{urlencode(asked)}"

    def live(self, topic: str, **asked: str) -> str:
        return f"{self.base}/live/{topic}" + (f"?{urlencode(asked)}" if asked else "")


# ---------------------------------------------------------------- what a host hands in


@dataclass(frozen=True, slots=True)
class ShownWings:
    """What a host has besides pipelines."""

    streams: tuple[Streams, ...]
    graphs: tuple[StandingGraph[Any, Any], ...]

    @classmethod
    def of(
        cls, streams: Iterable[Streams], graphs: Iterable[StandingGraph[Any, Any]]
    ) -> ShownWings:
        made, strange = cls(tuple(streams), tuple(graphs)), list[object]()
        if made.streams:
            from rowlock.streams import Streams  # noqa: PLC0415 - a wing

            strange += [one for one in made.streams if not isinstance(one, Streams)]
        if made.graphs:
            from rowlock.graph import StandingGraph  # noqa: PLC0415 - a wing

            strange += [one for one in made.graphs if not isinstance(one, StandingGraph)]
        if strange:
            raise ConfigurationError(
                "a Dashboard takes streams=[Streams(...)] and graphs=[StandingGraph(...)], not"
                f" {strange[0]!r:.100}"
            )
        return made


# ---------------------------------------------------------------- answers for several viewers


T = TypeVar("T")

RECENT_S: Final = 1.0  # for how long an answer is reused, in seconds
KEPT_MAX: Final = 256


class RecentAnswers:
    """Reuses answers for `RECENT_S`; a failed question is asked again."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `ask`, or one that another viewer got just now."""
        # A process may have several loops, and a fork has none of its parent's.
        loop = asyncio.get_running_loop()
        place = (id(loop), key)
        task = self._answers.get(place)
        if task is None or task.get_loop() is not loop:
            self._answers.pop(place, None)
            while len(self._answers) >= KEPT_MAX:
                del self._answers[next(iter(self._answers))]
            task = self._answers[place] = asyncio.create_task(
                _asked(ask), name="rowlock: dashboard"
            )
            task.add_done_callback(partial(self._answered, place))
        return cast("T", await asyncio.shield(task))

    def forget(self) -> None:
        self._answers.clear()

    def _answered(self, place: Hashable, task: asyncio.Task[Any]) -> None:
        # Its error is looked at here: everybody who waited for it may be gone.
        if task.cancelled() or task.exception() is not None:
            self._forget_one(place, task)
        else:
            task.get_loop().call_later(RECENT_S, self._forget_one, place, task)

    def _forget_one(self, place: Hashable, task: asyncio.Task[Any]) -> None:
        if self._answers.get(place) is task:
            del self._answers[place]


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


# ---------------------------------------------------------------- templates


_ACTING: Final = re.compile(r"\browlock (unpark|release|due) ")
_BUTTONS: Final = {"unpark": "unpark", "release": "release", "due": "make_due"}
"""The button of the page that does what a command does."""
_EXPLAINING: Final = re.compile(r"\browlock explain (.+)")


@lru_cache(maxsize=1)
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rowlock.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": shown,
        "count": count_text,
        "duration": lambda value: NOTHING if value is None else duration(value),
        "ago": ago,
        "clock": lambda time: "" if time is None else f"{time.astimezone(UTC):%H:%M:%S} UTC",
        "decimal": decimal_text,
        # What a replica has reported may be anything.
        "seconds": lambda one: f"{one:.3f} s" if isinstance(one, int | float) else NOTHING,
        "button": named_button,
        "named_row": named_row,
        "moment": lambda time, now: clock_time(time, now=now),
    }
    return made


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


def named_button(do: str) -> str:
    """Return the button for the command in an explanation; empty if there is none."""
    found = _ACTING.search(do)
    return "" if found is None else _BUTTONS[found[1]]


def named_row(text: str) -> tuple[str, str] | None:
    """Return model and key of the ``explain`` command in a text, if they survive the quoting."""
    found = _EXPLAINING.search(text)
    try:
        words = shlex.split(found[1]) if found is not None else []
    except ValueError:
        return None
    if words[:1] == ["--"]:
        del words[0]
    if found is None or len(words) != 2:  # noqa: PLR2004
        return None
    model, key = words
    # A key with characters that are shown as escapes is another one when a shell's rules read it.
    return (model, key) if row_command("explain", model, key) == found[0] else None


@dataclass(frozen=True, slots=True)
class PageVisit:
    request: Request
    viewer: Viewer
    insight: Insight
    observer: Observer | None
    recent: RecentAnswers
    streams: LiveStreams
    gatekeeper: Gatekeeper
    addresses: PageAddresses
    wings: ShownWings

    def part(self, name: str, **values: Any) -> str:
        """Render a part of a page, the same for all viewers."""
        # What a template gives is escaped already; nothing else is ever called markup.
        return Markup(render(f"parts/{name}.html", to=self.addresses, **values))  # noqa: S704

    async def recent_part(
        self, name: str, values: Callable[[], Awaitable[Mapping[str, Any]]], *key: str | None
    ) -> str:
        """Render a part with `values`, or return it as another viewer just got it."""

        async def make() -> str:
            return self.part(name, **await values())

        return await self.recent.get((name, self.addresses.base, *key), make)

    def page(
        self,
        template: str,
        *,
        status: int = 200,
        live: str | None = None,
        has_form: bool = False,
        **values: Any,
    ) -> Response:
        """Render a page; one with a form never reloads: that would lose what was typed."""
        token = token_of(self.request) or fresh_token()
        is_full = live is not None and self.streams.is_full
        response = HTMLResponse(
            render(
                template,
                to=self.addresses,
                viewer=self.viewer,
                wings=self.wings,
                token=token,
                live=None if is_full else live,
                reloads=live is not None and not has_form,
                is_full=is_full,
                done=self.request.query_params.get("done"),
                **values,
            ),
            status,
        )
        if has_form and token_of(self.request) is None:
            keep_token(response, self.request, token=token, path=self.addresses.base)
        return response

    async def may(self, *actions: ViewerAction) -> Mapping[str, bool]:
        # At once: a host that answers late is waited for no longer than for one.
        asked = (self.gatekeeper.viewer(self.request, action) for action in actions)
        viewers = await asyncio.gather(*asked)
        return {one.name: who is not None for one, who in zip(actions, viewers, strict=True)}
