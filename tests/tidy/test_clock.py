"""``clock.py`` is the only file that asks the time.

So tests move one clock, and a reader finds in one place which clock is meant. A timer of the event
loop, ``loop.time()``, is free.
"""

from __future__ import annotations

import ast

import pytest

from .reading import Source, dotted, imports, package, planted

CLOCK = "src/rowlock/clock.py"
CLOCKS = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"}
)
CALENDAR = frozenset({"now", "utcnow", "today"})


def clock_readers(tree: list[Source]) -> list[str]:
    """Find places that ask the time, or block until it has passed."""
    found = []
    for source in (source for source in tree if source.path != CLOCK):
        for target, line in imports(source):
            origin, _, name = target.rpartition(".")
            if origin == "time" and name in CLOCKS:
                found.append(source.finding(line, f"{target}: only clock.py asks the time"))
        asking = (
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and asks_the_time(node)
        )
        found.extend(
            source.finding(node, f"{dotted(node)}: only clock.py asks the time") for node in asking
        )
    return found


def asks_the_time(node: ast.Attribute) -> bool:
    """Whether the attribute is a clock of the standard library, called or handed on as a
    function.
    """
    origin = dotted(node.value).rpartition(".")[2]
    return (origin == "time" and node.attr in CLOCKS) or (
        origin in {"datetime", "date"} and node.attr in CALENDAR
    )


def test_only_the_clock_asks_the_time() -> None:
    """A moved clock would be seen by half of the code, and a host's clock could judge a lease."""
    assert clock_readers(package()) == []


@pytest.mark.parametrize(
    "text",
    [
        "datetime.now(UTC)",
        "datetime.datetime.utcnow()",
        "date.today()",
        "time.time()",
        "field(default_factory=time.monotonic)",
        "from time import perf_counter",
        "from time import monotonic as clock",
        "def f(): time.sleep(1)",
    ],
)
def test_planted_clock_reader(text: str) -> None:
    """The law above would pass whoever asks."""
    assert len(clock_readers(planted(text))) == 1
