"""Law 12, the budget: lines of Python per part only fall.

What is added pays with what it removes. A change that makes a part smaller lowers its figure here,
so that the room is not filled again. Modules and blind excepts only get fewer, too.
"""

from __future__ import annotations

import re
from collections import Counter

from .reading import Source, package, planted, sources

LINES = {
    "assistants": 188,
    "cli": 1707,
    "dashboard": 1775,
    "database": 1085,
    "demo": 652,
    "dialects": 2900,
    "dispatch": 3675,
    "graph": 6735,
    "ground": 2591,
    "insight": 8971,
    "leases": 2656,
    "locks": 621,
    "migrations": 678,
    "pipelines": 6393,
    "rows": 2320,
    "services": 600,
    "streams": 13488,
    "telemetry": 1224,
    "testing": 5234,
    "tests": 121970,
}
"""Most lines of each part of the package, and of `tests`."""
FILES_MAX = 236
"""Most modules of the package."""
BASE_EXCEPTIONS_MAX, BLIND_MAX = 34, 68
ROOM = 300
"""Lines by which a figure may be too high."""


def part_of(source: Source) -> str:
    """Return `tests`, a folder of the package, or `ground` for the modules beside those."""
    first, *others = source.path.removeprefix("src/rowlock/").split("/")
    return first if others else "ground"


def lines_of(tree: list[Source]) -> Counter[str]:
    found: Counter[str] = Counter()
    for source in tree:
        found[part_of(source)] += source.text.count("\n")
    return found


def over_budget(tree: list[Source]) -> list[str]:
    """Find parts that have grown, and figures that can be lowered."""
    lines = lines_of(tree)
    return [
        f"{part}: {lines[part]} lines, and the figure is {LINES.get(part, 0)}"
        for part in sorted(lines.keys() | LINES.keys())
        if not LINES.get(part, 0) - ROOM <= lines[part] <= LINES.get(part, 0)
    ]


def count_of(pattern: str, tree: list[Source]) -> int:
    """Count where `pattern` is found."""
    return sum(len(re.findall(pattern, source.text)) for source in tree)


def test_parts_only_get_smaller() -> None:
    """The library would grow past what a small team can own."""
    assert over_budget([*package(), *sources("tests/")]) == []


def test_modules_only_get_fewer() -> None:
    """An act would pass ever more files."""
    assert len(package()) <= FILES_MAX


def test_blind_excepts_only_get_fewer() -> None:
    """Each of them swallows faults that no author has thought of."""
    assert count_of(r"except BaseException", package()) <= BASE_EXCEPTIONS_MAX
    assert count_of(r"noqa: BLE001", package()) <= BLIND_MAX


def test_planted_growth() -> None:
    """The law above would pass any size."""
    [grown] = over_budget(planted("x = 1\n" * (max(LINES.values()) + 1)))[:1]
    assert "the figure is" in grown
