"""Law 5: `import rowlock` opens no floor above the door, and stays cheap.

How long it takes is measured in `tests/bench`. What it loads is the cause, and does not depend on
the machine.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from .reading import PACKAGE, Source, imports, package, planted, room_of, sources
from .test_law_1_floors import FLOORS, FRONT_DOOR_FLOOR
from .test_law_4_guests import WINDOWS

DOORS = ("rowlock", "rowlock.dispatch", "rowlock.testing")
PUBLIC_MODULES = ("rowlock", "rowlock.errors", "rowlock.events", "rowlock.stream_errors")
"""What they make may be taken from them as well."""
DEEP_MAX = 975
"""Deep imports of tests, which only get fewer."""
ABOVE = {room for room, floor in FLOORS.items() if floor > FRONT_DOOR_FLOOR}


def intruders(loaded: list[str]) -> list[str]:
    """Find, among the names of loaded modules, guests and rooms that a plain import has no use
    for.
    """
    guests = [name for name in loaded if name.split(".")[0] in WINDOWS]
    rooms = [name for name in loaded if name.split(".")[0] == PACKAGE and room_of(name) in ABOVE]
    return guests + rooms


def unlisted_names(tree: list[Source]) -> list[str]:
    """Find names that the front door imports without listing them in ``__all__``, and listed
    names that it lacks.
    """
    found: list[str] = []
    for source in (source for source in tree if source.path.endswith("rowlock/__init__.py")):
        has = {
            target.rpartition(".")[2]
            for target, _ in imports(source)
            if target.startswith(f"{PACKAGE}.")
        }
        has |= {
            node.id
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Name) and node.id == "__version__"
        }
        lists = [
            ast.literal_eval(node.value)
            for node in source.tree.body
            if isinstance(node, ast.Assign) and is_all(node)
        ]
        listed = set(lists[0]) if lists else set()
        found.extend(
            source.finding(1, f"{name} is either shown or listed, not both")
            for name in sorted(has ^ listed)
        )
    return found


def names_of_doors(tree: list[Source]) -> dict[str, str]:
    """Return by which door each public name comes out, by where it is made: the doors are modules
    that list what they show.
    """
    return {
        target: door
        for door in DOORS
        for source in tree
        if source.module == door
        for target, _ in imports(source)
        if target.startswith(f"{PACKAGE}.") and target.rpartition(".")[0] not in PUBLIC_MODULES
    }


def back_doors(tree: list[Source], doors: dict[str, str]) -> list[str]:
    """Find public names that are taken from where they are made."""
    return [
        source.finding(line, f"{target} is shown by {doors[target]}: take it from there")
        for source in tree
        for target, line in imports(source)
        if target in doors
    ]


def deep_imports(tree: list[Source]) -> list[str]:
    """Find imports of tests from modules that are neither doors nor what the test is named after:
    law 11.
    """
    return [
        source.finding(line, target)
        for source in tree
        for target, line in imports(source)
        if target.count(".") > 2
        and target.startswith(f"{PACKAGE}.")
        and target.split(".")[-2] not in source.path.removesuffix(".py").replace("test_", "")
    ]


def is_all(node: ast.Assign) -> bool:
    """Whether the statement assigns ``__all__``."""
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def loaded_by(statement: str) -> list[str]:
    """Run a statement in a Python of its own and return the names of the modules it has loaded."""
    code = f"{statement}; import sys; print(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=500
    )
    return run.stdout.split()


def test_import_opens_the_lower_floors_only() -> None:
    """Every start of every host would load a test framework, a console or a driver that it does
    not use.
    """
    loaded = loaded_by("import rowlock")
    assert PACKAGE in loaded
    assert intruders(loaded) == []


def test_front_door_lists_what_it_shows() -> None:
    """A public name would be missing for type checkers and for ``from rowlock import *``, or
    promised and not there.
    """
    assert unlisted_names(package()) == []


def test_tests_and_examples_take_what_is_public_from_its_door() -> None:
    """To move what is behind a door would break a hundred tests that are about something else."""
    doors = names_of_doors(package())
    shown = {name.rpartition(".")[2] for name in doors}
    assert shown >= {"PipelineManager", "Task", "virtual_time"}
    assert back_doors(sources("tests") + sources("examples"), doors) == []


def test_deep_imports_of_tests_only_get_fewer() -> None:
    """To move a module would break tests that are about something else."""
    assert len(deep_imports(sources("tests"))) <= DEEP_MAX


def test_planted_back_door() -> None:
    """The law above would pass any import."""
    doors = names_of_doors(package())
    text = "from rowlock.rows.columns import LockColumns"
    assert len(back_doors(planted(text, "tests/rows/planted.py"), doors)) == 1


def test_planted_intruder_is_loaded() -> None:
    """The law above would look at a list in which nothing ever appears."""
    assert "pytest" in intruders(loaded_by("import pytest"))


@pytest.mark.parametrize(
    "name", ["asyncpg.pool", "rich", "pytest", "alembic", "rowlock.testing.faults", "rowlock.demo"]
)
def test_planted_intruder(name: str) -> None:
    """The law above would pass whatever is loaded."""
    assert intruders(["asyncio", "sqlalchemy", "rowlock", "rowlock.rows", name]) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "from rowlock.rows.columns import LockColumns",
        "__all__ = ['LockColumns']",
        "from rowlock.rows.columns import LockColumns, ScheduleColumns\n__all__ = ['LockColumns']",
    ],
)
def test_planted_unlisted_name(text: str) -> None:
    """The law above would pass any list."""
    assert len(unlisted_names(planted(text, "src/rowlock/__init__.py"))) == 1


def test_import_opens_no_database() -> None:
    """Every start of a host would load a driver, and what rowlock does on a database that the
    host does not use.
    """
    loaded = loaded_by("import rowlock")
    assert "rowlock.dialects.postgresql" in loaded
    assert [
        name
        for name in loaded
        if name.startswith(("rowlock.dialects.postgresql.", "rowlock.dialects.sqlite."))
    ] == []
