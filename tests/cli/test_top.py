"""``rowlock top`` on a real terminal: what it shows, and that the terminal is as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import URL

from rowlock.cli import top as top_look
from rowlock.cli import windows
from rowlock.insight import Insight
from rowlock.testing import TemporaryDatabase

from ..chaos.proxy import Proxy
from .conftest import Command
from .terminal import ALTERNATE, LEFT, Terminal, terminal
from .watched_app import HOSTILE, URL_VARIABLE, furnish

Top = Callable[..., AbstractContextManager[Terminal]]


def top_of(url: URL, folder: Path) -> Top:
    """Return what runs `top` on a database, in a terminal."""

    def run(app: str = "questions", size: tuple[int, int] = (80, 24)) -> Any:
        environment = os.environ | {
            URL_VARIABLE: url.render_as_string(hide_password=False),
            # As of a shell that has exported them, and of workers of pytest.
            "COLUMNS": "80",
            "LINES": "24",
        }
        words = ("top", "--app", f"watched_app:{app}")
        return terminal(words, folder, environment, size=size)

    return run


@pytest.fixture
def top(sqlite_database: TemporaryDatabase, tmp_path: Path) -> Top:
    """Run `top` on the test's database."""
    return top_of(sqlite_database.url, tmp_path)


def is_as_before(terminal: Terminal) -> bool:
    """Whether the terminal echoes again, and shows what it showed."""
    entered, left = terminal.written.rfind(ALTERNATE), terminal.written.rfind(LEFT)
    return terminal.settings() == terminal.before and -1 < entered < left


def walk(top: Top) -> None:
    with top() as screen:
        first = screen.until("PARKED  STATE")
        assert "sqlite " in first
        assert "2 replicas" in first
        assert "VolumePipeline" in screen.until("4 parked: Volume 17, 18, 40")
        assert "12/20" in screen.until("longest at work")
        screen.press("e")  # of a pipeline: the row that was parked first
        explained = screen.until("PARKED for 2")
        assert "Volume 17" in explained
        screen.press("r?")  # keys behind an explanation
        screen.until("looks and never acts")
        screen.press("\x1b")
        screen.until("4 parked: Volume 17")
        screen.press("\te")  # the row that is longest at work
        screen.until("Volume 90 · VolumePipeline")
        screen.press("\x1b")
        screen.until("4 parked: Volume 17")
        screen.resize(50, 12)
        narrow = screen.until(lambda text: "NAME" in text and "118" in text)
        assert "QUEUE" not in narrow
        screen.resize(40, 10)
        screen.until("STATE")
        screen.resize(39, 10)
        screen.until("make me larger")
        screen.resize(110, 24)
        screen.until("10 MIN")
        screen.press("?q")
        assert screen.exit_code() == 0
        assert is_as_before(screen)


async def test_a_walk_over_every_key_and_size(sqlite_database: TemporaryDatabase, top: Top) -> None:
    """A person would look at a picture that is torn, or press keys that nobody hears."""
    await furnish(sqlite_database)
    await asyncio.to_thread(walk, top)


async def test_a_size_that_no_signal_told_is_seen(
    sqlite_database: TemporaryDatabase, top: Top
) -> None:
    """Of two quick changes of a window the last may be lost, and the picture would stay torn."""
    await furnish(sqlite_database)

    def resized() -> None:
        with top() as screen:
            screen.until("118")
            screen.resize(39, 10, is_told=False)
            screen.until("make me larger")

    await asyncio.to_thread(resized)


@pytest.mark.parametrize(
    ("end", "code"),
    [("\x03", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
async def test_the_terminal_is_as_before_whatever_ends_it(
    sqlite_database: TemporaryDatabase, top: Top, end: str | signal.Signals, code: int
) -> None:
    """A shell would be left that does not echo, in a picture that stands still."""
    await furnish(sqlite_database)

    def ended() -> None:
        with top() as screen:
            screen.until("118")
            screen.press("e")
            screen.until("rowlock explain Volume 17")
            screen.press(end) if isinstance(end, str) else screen.signal(end)
            assert screen.exit_code() == code
            assert is_as_before(screen)

    await asyncio.to_thread(ended)


async def test_an_error_in_the_drawing_is_one_line_and_restores_the_terminal(
    sqlite_database: TemporaryDatabase, top: Top
) -> None:
    """A page of variables, with the password of the database, would stand in a broken terminal."""
    await furnish(sqlite_database)

    def broken() -> None:
        with top("broken") as screen:
            assert screen.exit_code() == 2
            assert is_as_before(screen)
            assert "rowlock: AttributeError" in screen.text
            assert b"Traceback" not in screen.written

    await asyncio.to_thread(broken)


async def test_a_database_that_goes_away_and_comes_back(
    postgresql_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A person would trust figures of ten minutes ago, or would have to start it again."""
    await furnish(postgresql_database)
    proxy = Proxy(postgresql_database.url)
    await proxy.start()
    url = postgresql_database.url.set(host="127.0.0.1", port=proxy.port, query={"ssl": "disable"})
    with top_of(url, tmp_path)() as screen:
        await asyncio.to_thread(screen.until, "118")
        await proxy.stop()
        away = await asyncio.to_thread(screen.until, "! no database")
        assert "old)" in away
        assert "118" in away
        screen.press("e")
        await asyncio.to_thread(screen.until, "r asks again")
        await proxy.start()
        screen.press("r")
        await asyncio.to_thread(screen.until, "PARKED for 2")
        screen.press("\x1b")
        await asyncio.to_thread(
            screen.until, lambda text: "118" in text and "no database" not in text
        )
        screen.press("q")
        assert await asyncio.to_thread(screen.exit_code) == 0
    await proxy.stop()


async def test_nothing_of_a_row_is_a_control_byte(
    sqlite_database: TemporaryDatabase, top: Top
) -> None:
    """Whoever can write an error could write into the terminal of an administrator."""
    await furnish(sqlite_database, parked=[HOSTILE], error=HOSTILE)

    def read() -> bytes:
        with top(size=(120, 30)) as screen:
            screen.until("parked: Volume \\x1b]0;owned\\x07\\x1b[2J[bold]")
            screen.press("e")
            screen.until(lambda text: "PARKED for" in text and "gave up" not in text)
            screen.press("q")
            assert screen.exit_code() == 0
        return bytes(screen.written)

    written = await asyncio.to_thread(read)
    assert b"owned\\x07" in written
    assert b"]0;owned\x07" not in written
    assert "\u202e".encode() not in written


def test_without_a_terminal_it_says_what_to_type(rowlock: Command) -> None:
    """A pipe would be filled with escape sequences."""
    ended = rowlock("top", "--app", "app:pair")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "rowlock status --watch" in ended.stderr
    assert "status --json" in rowlock("top", "--app", "app:pair", "--json").stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain install would end in a traceback."""
    options = windows.argparse.Namespace(json=False)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert windows.why_not(options) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert "needs a terminal" in windows.why_not(options)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(windows, "find_spec", lambda name: None)
    assert 'pip install "rowlock[cli]"' in windows.why_not(options)


class SlowQuestions:
    """Answers when it is told to, and counts how many ask at once."""

    def __init__(self) -> None:
        self.asked = self.at_once = self.at_once_most = 0
        self.answers: asyncio.Queue[None] = asyncio.Queue()
        self.begun: asyncio.Queue[None] = asyncio.Queue()

    async def status(self, **_: object) -> None:
        self.asked += 1
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        self.begun.put_nowait(None)
        await self.answers.get()
        self.at_once -= 1
        raise ConnectionError("no database")


async def test_a_slow_database_is_asked_one_question_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person who keeps a key pressed would ask it to death."""
    monkeypatch.setattr(top_look, "EVERY_S", 0.0)
    questions, seen = SlowQuestions(), list[top_look.LookState]()
    looker = top_look.Looker(cast("Insight", questions), seen.append)
    task = asyncio.create_task(looker.run())
    try:
        for asked in range(1, 4):
            await questions.begun.get()
            for _ in range(50):
                looker.hurry()
            assert questions.asked == asked
            questions.answers.put_nowait(None)
        await questions.begun.get()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert questions.at_once_most == 1
    failing = [one for one in seen if one.error]
    assert {one.failing_since for one in failing} == {failing[0].failing_since}


def test_what_there_is_room_for() -> None:
    """A table would be cut off where its state stands."""
    assert top_look.columns(59) == ("PIPELINE", "DUE", "OLDEST", "STATE")
    assert top_look.heading("PIPELINE", 59) == "NAME"
    assert {"10 MIN", "P95"}.isdisjoint(top_look.columns(99))
    assert top_look.columns(100) == top_look.COLUMNS


def test_a_bar_for_each_minute() -> None:
    """A pipeline that stands still would look like one that was never seen."""
    assert top_look.per_minute([(0.0, 5.0), (30.0, 7.0), (599.0, 2.0)], now=600.0)[-1] == 2.0
    assert top_look.per_minute([(30.0, 7.0), (31.0, 5.0)], now=600.0) == [6.0] + [None] * 9
    assert top_look.sparkline([None, 0.0, 1.0, 4.0, 8.0]) == " ▁▂▅█"
    history = top_look.RateHistory()
    for second in range(5_000):
        history.add(second, [("a", 1.0), ("b", None)])
    assert history.picture("a", 5_000) == "█" * 10
    assert history.picture("b", 5_000) == " " * 10
