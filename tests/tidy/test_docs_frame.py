"""Files that the docs and docstrings name are there, and the drawing of the house has every
room.
"""

from __future__ import annotations

import re

import pytest

from .reading import PACKAGE, ROOT, committed_files
from .test_law_1_floors import FLOORS, STAGES

NAMED = re.compile(rf"(?<![\w/.-])(?:src/{PACKAGE}/)?(?P<path>(?:{'|'.join(FLOORS)})/[\w/]+\.py)\b")
READ = ("README.md", "docs/", "src/")
HOUSE = "docs/design/house.md"


def dead_names(path: str, text: str, present: set[str]) -> list[str]:
    """Find files of the package that a text names and that are not there."""
    lines = enumerate(text.splitlines(), start=1)
    named = [(number, found["path"]) for number, line in lines for found in NAMED.finditer(line)]
    return [
        f"{path}:{number}: there is no {name}"
        for number, name in named
        if f"src/{PACKAGE}/{name}" not in present
    ]


def test_named_files_exist() -> None:
    """A reader would look for a file that was moved or never written."""
    present = {path.relative_to(ROOT).as_posix() for path in committed_files()}
    found = []
    for name in sorted(present):
        if name.startswith(READ) and name.endswith((".md", ".py")):
            found += dead_names(name, (ROOT / name).read_text(encoding="utf-8"), present)
    assert found == []


@pytest.mark.parametrize(
    "text", ["see `rows/gone.py`", "``leases/dialects/oracle.py``", "src/rowlock/locks/gone.py"]
)
def test_planted_dead_name(text: str) -> None:
    """The check above would pass any name."""
    assert len(dead_names("planted.md", text, {"src/rowlock/rows/columns.py"})) == 1


def undrawn_rooms(page: str, present: set[str]) -> list[str]:
    """Find rooms and stages that stand in the package and not in the drawing of the house."""
    drawing = page.partition("```\n")[2].partition("```")[0]
    top = {
        name.removeprefix(f"src/{PACKAGE}/")
        for name in present
        if name.startswith(f"src/{PACKAGE}/")
    }
    rooms = {
        f"{name.split('/')[0]}/" if "/" in name else name for name in top if name.endswith(".py")
    }
    return sorted(
        room for room in rooms | {f"{stage}.py" for stage in STAGES} if f" {room}" not in drawing
    )


def test_house_is_drawn() -> None:
    """A reader would meet a folder of which the drawing knows nothing."""
    present = {path.relative_to(ROOT).as_posix() for path in committed_files()}
    assert undrawn_rooms((ROOT / HOUSE).read_text(encoding="utf-8"), present) == []


def test_planted_undrawn_room() -> None:
    """The check above would pass any drawing."""
    page = (
        "# The house\n\n```\n  rows/  clock.py\n"
        + "".join(f"  {stage}.py\n" for stage in STAGES)
        + "```\n attic/\n"
    )
    present = {
        f"src/{PACKAGE}/{name}"
        for name in ("rows/columns.py", "clock.py", "attic/a.py", "logs.py", "py.typed")
    }
    assert undrawn_rooms(page, present) == ["attic/", "logs.py"]


def numbers_given_twice(names: list[str]) -> list[str]:
    numbers = [name.split("-")[0] for name in names]
    return sorted({number for number in numbers if numbers.count(number) > 1})


def test_decisions_have_numbers_of_their_own() -> None:
    """A comment that names a decision by its number would name two."""
    decisions = [path.name for path in committed_files() if path.parent.name == "decisions"]
    assert len(decisions) > 20
    assert numbers_given_twice(decisions) == []


def test_planted_number_given_twice() -> None:
    """The check above would pass any number."""
    assert numbers_given_twice(["01-one.md", "02-two.md", "02-too.md"]) == ["02"]
