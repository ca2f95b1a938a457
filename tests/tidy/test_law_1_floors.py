"""Law 1: imports point down, rooms on one floor are unaware of each other, and nothing goes round
in circles.

An import for type checkers only counts like any other: who names a type knows the room it lives in.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from .reading import PACKAGE, Source, imports, package, planted, room_of

FLOORS: dict[str, float] = {
    **dict.fromkeys(("clock", "redaction"), -3),
    **dict.fromkeys(("errors", "logs"), -2),
    **dict.fromkeys(("app_names", "events", "schedules", "stream_errors"), -1),
    **dict.fromkeys(("tasks", "dialects", "execution"), 0),
    **dict.fromkeys(("rows", "locks"), 1),
    "database": 2,
    "leases": 3,
    "hints": 4,
    **dict.fromkeys(("pipelines", "services"), 5),
    "spi": 6,
    "migrations": 6.5,
    **dict.fromkeys(("dispatch", "graph", "streams"), 7),
    "insight": 7.5,
    **dict.fromkeys(("assistants", "dashboard", "telemetry", "testing"), 8),
    "cli": 8.5,
    "demo": 9,
    "__main__": 10,
}
"""The ground has four steps: tasks need errors and the log, and these need the time.

Insight asks about the wings too, and the command line opens every window but the demo.

The demo stands above the other windows, because it opens its databases as `testing` does.
"""
IMPLEMENTATIONS_FLOOR = 3.5
"""Where the parts of each database stand, ``dialects/<database>/*.py``: they know what is asked of
them, up to leases.

The registry, and what says where the parts are, stand on the ground; they name the parts and import
none.
"""
CONTRACT = "rowlock.dialects.contract"
"""What a database must do, in one module on the ground; for type checkers alone it names what it is
given of leases and rows.
"""
FRONT_DOOR_FLOOR = 6
"""``__init__`` shows the public names of the floors below it; wings and windows may come in by
it, as a host does.
"""
STAGES: dict[str, int] = {
    **dict.fromkeys(("lock_graph", "schedules", "attempt"), 0),
    **dict.fromkeys(("heartbeat_thread", "heartbeater"), 1),
    **dict.fromkeys(("planner", "writer", "settler"), 2),
    **dict.fromkeys(("worker",), 3),
    **dict.fromkeys(("fetcher",), 4),
}
"""Within ``pipelines/``: a stage hands its rows on, so it may know those with lower numbers."""
SHARED: tuple[str, ...] = ("context", "outcomes", "settings", "statistics")
"""Modules of ``pipelines/`` that all stages may know, and that know no stage but
those of the host's code, the first."""


HEART = frozenset(room for room, floor in FLOORS.items() if 1 <= floor <= 5) | {"dialects"}
DEEP_MAX = 40
"""Names that wings and windows import from the heart, which come neither by the front door nor by
``spi``: only fewer.
"""


def floor_of(room: str) -> float | None:
    """Return the floor of a room, or nothing where the house has no such room."""
    if room.startswith("dialects."):
        return IMPLEMENTATIONS_FLOOR
    return FRONT_DOOR_FLOOR if room == "" else FLOORS.get(room)


def storey_of(module: str) -> str:
    """Return the room of a module; the implementations for each database are a room of their
    own.
    """
    parts = module.split(".")
    return (
        ".".join(parts[1:3]) if parts[1:2] == ["dialects"] and len(parts) > 3 else room_of(module)
    )


def imported_modules(source: Source, known: set[str]) -> Iterable[tuple[str, int]]:
    """Yield the modules of the package that `source` imports, each with the line."""
    for target, line in imports(source):
        is_given = source.module == CONTRACT and room_of(target) in ("leases", "rows")
        if target.split(".")[0] == PACKAGE and not is_given:
            yield (
                (target if target in known or "." not in target else target.rpartition(".")[0]),
                line,
            )


def upward_imports(tree: list[Source]) -> list[str]:
    """Find imports of a room that is not on a floor below, and rooms without a floor."""
    known = {source.module for source in tree}
    found = []
    for source in tree:
        own = storey_of(source.module)
        floor = floor_of(own)
        if floor is None:
            found.append(
                source.finding(
                    1, f"the room {source.room!r} is on no floor; give it one in {__name__}"
                )
            )
            continue
        for module, line in imported_modules(source, known):
            room = storey_of(module)
            below = floor_of(room)
            if room != own and (below is None or below >= floor):
                found.append(
                    source.finding(line, f"{source.room or 'the front door'} may not know {module}")
                )
    return found


def stage_of(module: str) -> int | None:
    """Return the number of the stage that a module belongs to; nothing for the modules that put
    the stages together.
    """
    parts = module.split(".")
    if parts[1:2] != ["pipelines"] or len(parts) < 3:
        return None
    return -1 if parts[2] in SHARED else STAGES.get(parts[2])


def backward_imports(tree: list[Source]) -> list[str]:
    """Find stages, and what they share, that know a stage which hands its rows to them, or what
    puts the stages together.
    """
    known = {source.module for source in tree}
    found = []
    for source in tree:
        own = stage_of(source.module)
        if own is None:
            continue
        for module, line in imported_modules(source, known):
            other = stage_of(module)
            is_within = module.startswith(f"{PACKAGE}.pipelines.")
            is_same = source.module.split(".")[:3] == module.split(".")[:3]
            if is_within and not is_same and (other is None or other > max(own, 0)):
                found.append(source.finding(line, f"{source.module} may not know {module}"))
    return found


def circles(tree: list[Source]) -> list[str]:
    """Find modules that import themselves by way of others."""
    known = {source.module for source in tree}
    edges = {
        source.module: {module for module, _ in imported_modules(source, known)} for source in tree
    }
    found = []
    for source in tree:
        seen: set[str] = set()
        waiting = list(edges[source.module])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting.extend(edges.get(module, ()))
        if source.module in seen:
            found.append(source.finding(1, f"{source.module} imports itself by way of others"))
    return found


def test_imports_point_down() -> None:
    """A lower floor would know a higher one, and could no longer be read, tested or replaced on
    its own.
    """
    assert upward_imports(package()) == []


def test_stages_hand_rows_on() -> None:
    """A row's day could not be read in the order of the folders: a stage would reach back to one
    that is done with the row.
    """
    assert backward_imports(package()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/rowlock/pipelines/settler.py", "from rowlock.pipelines.worker import Worker"),
        ("src/rowlock/pipelines/heartbeater.py", "from rowlock.pipelines.settler import Settler"),
        ("src/rowlock/pipelines/worker.py", "from rowlock.pipelines.fetcher import Fetcher"),
        ("src/rowlock/pipelines/fetcher.py", "from rowlock.pipelines.run import PipelineRun"),
        (
            "src/rowlock/pipelines/context.py",
            "from rowlock.pipelines.heartbeat_thread import HeartbeatThread",
        ),
    ],
)
def test_planted_backward_import(path: str, text: str) -> None:
    """The law above would pass stages that know each other both ways."""
    assert len(backward_imports(planted(text, path))) == 1


def test_no_circles() -> None:
    """Two modules that import each other are one module in two files."""
    assert circles(package()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/rowlock/rows/a.py", "from rowlock.leases import claim"),
        ("src/rowlock/rows/a.py", "import rowlock.pipelines.worker"),
        ("src/rowlock/rows/a.py", "from ..leases.claim import claim"),
        ("src/rowlock/rows/a.py", "from rowlock import Pipeline"),
        ("src/rowlock/rows/a.py", "def f():\n    from rowlock.locks import locker"),
        (
            "src/rowlock/rows/a.py",
            "if TYPE_CHECKING:\n    from rowlock.pipelines.worker import Worker",
        ),
        ("src/rowlock/clock.py", "from rowlock.errors import RowlockError"),
        ("src/rowlock/testing/a.py", "from rowlock.demo import host"),
        ("src/rowlock/telemetry/a.py", "from rowlock.testing import stepping"),
        ("src/rowlock/__init__.py", "from rowlock.testing import faults"),
        ("src/rowlock/attic/a.py", "x = 1"),
        ("src/rowlock/leases/a.py", "from rowlock.dialects.sqlite.leases import SqliteLeases"),
        (
            "src/rowlock/dialects/sqlite/__init__.py",
            "from rowlock.dialects.sqlite.leases import SqliteLeases",
        ),
        ("src/rowlock/dialects/registry.py", "from rowlock.leases.claim_request import LEASES"),
        (
            "src/rowlock/dialects/sqlite/a.py",
            "from rowlock.dialects.postgresql.leases import PostgresqlLeases",
        ),
        ("src/rowlock/dialects/sqlite/a.py", "from rowlock.hints import PipelineHinter"),
    ],
)
def test_planted_upward_import(path: str, text: str) -> None:
    """The law above would pass whatever is imported."""
    assert len(upward_imports(planted(text, path))) == 1


def test_planted_circle() -> None:
    """The law above would pass a circle of three, closed for type checkers only."""
    tree = [
        Source("src/rowlock/rows/a.py", "from rowlock.rows import b"),
        Source("src/rowlock/rows/b.py", "import rowlock.rows.c"),
        Source("src/rowlock/rows/c.py", "if TYPE_CHECKING:\n    from .a import A"),
    ]
    assert len(circles(tree)) == 3


def deep_imports(tree: list[Source]) -> list[str]:
    """Find imports from the heart by parts above the front door, past it and ``spi``."""
    return [
        source.finding(found.line, found.target)
        for source in tree
        if FLOORS.get(source.room, 0) > FRONT_DOOR_FLOOR
        for found in imports(source)
        if found.target.startswith(f"{PACKAGE}.") and room_of(found.target) in HEART
    ]


def test_parts_come_in_by_the_door() -> None:
    """The heart could not be changed without reading all wings and windows."""
    assert len(deep_imports(package())) <= DEEP_MAX


def test_planted_deep_import() -> None:
    """The law above would pass any import."""
    text = "from rowlock.rows.leased_table import LeasedTable"
    assert len(deep_imports(planted(text, "src/rowlock/streams/planted.py"))) == 1
    assert deep_imports(planted(text, "src/rowlock/leases/planted.py")) == []
