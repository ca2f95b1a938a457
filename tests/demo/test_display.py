"""What is shown, and where."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from rowlock.demo import display as module
from rowlock.demo.display import PlainDisplay, RichDisplay, display
from rowlock.demo.play import BacklogProgress
from rowlock.demo.verdict import Finding


def progress(seconds: float) -> BacklogProgress:
    """Half-way, after `seconds`."""
    return BacklogProgress(files=10, finished=5, held=2, waiting=3, alive=2, seconds=seconds)


def test_plain_line_every_second(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of a build would be flooded."""
    shown = PlainDisplay()
    for seconds in (0.0, 0.4, 0.9, 1.0, 1.5, 2.1):
        shown.show(progress(seconds))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_plain_verdict_names_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader would not see what went wrong."""
    PlainDisplay().conclude([Finding("lost", "1 (a)", holds=False), Finding("files", "2", holds=True)])
    out = capsys.readouterr().out
    assert "BAD  lost" in out
    assert out.rstrip().endswith("something does not hold")


def test_rich_verdict_shows_text_as_it_is() -> None:
    """A file called ``[red]`` would colour the table instead of being named."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    shown = RichDisplay(console, Bar(TextColumn("{task.fields[state]}"), console=console))
    shown.show(progress(1.0))
    shown.say("[bold]as it is")
    shown.conclude([Finding("lost", "1 ([red])", holds=False)])
    assert isinstance(console.file, io.StringIO)
    out = console.file.getvalue()
    assert "[bold]as it is" in out
    assert "[red]" in out


def test_plain_install_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich the demo would fail on a terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with display() as shown:
        assert isinstance(shown, PlainDisplay)
