"""Shows how it goes: a progress bar on a terminal where rich is installed, plain lines everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from rowlock.demo.play import Audience, BacklogProgress
from rowlock.demo.verdict import Finding, all_hold

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

LINE_S = 1.0
"""How long a plain line stands before the next one."""
GOOD, BAD = "all of it holds", "something does not hold"


class Display(Audience, Protocol):
    """An audience that also shows the end of the story."""

    def conclude(self, findings: Sequence[Finding]) -> None:
        """Show the verdict."""
        ...


@contextmanager
def display() -> Iterator[Display]:
    """Yield the best display that there is."""
    if not (sys.stdout.isatty() and find_spec("rich")):
        yield PlainDisplay()
        return
    from rich.console import Console  # noqa: PLC0415 - an extra

    yield from _live(Console())


class PlainDisplay:
    """Lines of text."""

    def __init__(self) -> None:
        self._shown_at = float("-inf")

    def show(self, progress: BacklogProgress) -> None:
        """Print a line, if the last one is old enough."""
        if progress.seconds - self._shown_at >= LINE_S:
            self._shown_at = progress.seconds
            print(
                f"{progress.seconds:5.1f} s  {progress.finished:>6,} of {progress.files:,}  {_state(progress)}",
                flush=True,
            )

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"         {text}", flush=True)

    def conclude(self, findings: Sequence[Finding]) -> None:
        """Print the verdict as columns."""
        width = max(len(finding.name) for finding in findings)
        print()
        for finding in findings:
            print(f"{_mark(finding):4} {finding.name:{width}}  {finding.value}")
        print(f"\n{GOOD if all_hold(findings) else BAD}", flush=True)


class RichDisplay:
    """A bar that moves, and a table."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self._console = console
        self._bar = bar
        self._task = bar.add_task("", total=None, state="the replicas start")

    def show(self, progress: BacklogProgress) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=progress.finished, total=progress.files, state=_state(progress))

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(f"[dim]·[/dim] {_escaped(text)}", highlight=False)

    def conclude(self, findings: Sequence[Finding]) -> None:
        """End the bar and draw the table."""
        from rich.table import Table  # noqa: PLC0415 - an extra

        self._bar.stop()
        holds = all_hold(findings)
        table = Table(title="rowlock", caption=GOOD if holds else BAD, show_header=False)
        for finding in findings:
            colour = {None: "dim", True: "green", False: "bold red"}[finding.holds]
            table.add_row(f"[{colour}]{_mark(finding)}[/]", finding.name, f"[{colour}]{_escaped(finding.value)}[/]")
        self._console.print(table)


def _live(console: Console) -> Iterator[Display]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[state]}"))
    with Bar(*columns, console=console) as bar:
        yield RichDisplay(console, bar)


def _state(progress: BacklogProgress) -> str:
    replicas = "1 replica" if progress.alive == 1 else f"{progress.alive} replicas"
    return f"{replicas}, {progress.held} rows leased, {progress.waiting:,} waiting"


def _mark(finding: Finding) -> str:
    return {None: "", True: "ok", False: "BAD"}[finding.holds]


def _escaped(text: str) -> str:
    from rich.markup import escape  # noqa: PLC0415 - an extra

    return escape(text)
