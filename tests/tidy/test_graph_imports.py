"""What the files of ``graph/`` may import: a graph is useful without a database, and one file of it
meets rows.

The file `pipeline` of the wing may know what a host knows. Every other file knows the ground only:
its errors and the time, and what the laws about logs, tasks and cancelled callers ask for.
"""

from __future__ import annotations

import pytest

from .reading import PACKAGE, Source, imports, package, planted, room_of

WING = "src/rowlock/graph/"
MEETS_ROWS = f"{WING}pipeline.py"
GROUND = frozenset({"clock", "errors", "graph", "logs", "tasks"})
OF_ROWS = frozenset({"sqlalchemy", "pydantic"})
HOME_OF_PROCESSES = f"{WING}processes.py"


def graph_imports_astray(tree: list[Source]) -> list[str]:
    """Find files of the wing that know rows, or a guest that belongs in one file of it."""
    return [
        source.finding(line, f"{target}: only {home} may know it")
        for source in tree
        if source.path.startswith(WING)
        for target, line in imports(source)
        if (home := home_of(target)) not in {None, source.path}
    ]


def home_of(target: str) -> str | None:
    """Return the only file of the wing that may import `target`; None if all may."""
    guest = target.split(".", maxsplit=1)[0]
    if guest == "anyio":
        return HOME_OF_PROCESSES
    is_of_rows = guest == PACKAGE and room_of(target) not in GROUND
    return MEETS_ROWS if is_of_rows or guest in OF_ROWS else None


def test_a_graph_needs_no_rows() -> None:
    """A graph inside one item, or without a database, would bring the whole library with it; and
    a reader who asks where graphs meet leases would have to look everywhere.
    """
    assert graph_imports_astray(package()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/rowlock/graph/processor.py", "from rowlock.pipelines.pipeline import Pipeline"),
        ("src/rowlock/graph/processor.py", "from rowlock import Outcome"),
        ("src/rowlock/graph/processor.py", "import rowlock"),
        ("src/rowlock/graph/stock/lanes.py", "from rowlock.leases.item import PipelineItem"),
        ("src/rowlock/graph/flow.py", "from rowlock.rows.columns import LockColumns"),
        ("src/rowlock/graph/envelopes.py", "from rowlock.events import emit"),
        ("src/rowlock/graph/processor.py", "def f():\n    from sqlalchemy import select"),
        ("src/rowlock/graph/flow.py", "from pydantic import BaseModel"),
        ("src/rowlock/graph/pipeline.py", "from anyio import to_process"),
        ("src/rowlock/graph/threads.py", "import anyio"),
    ],
)
def test_planted_graph_import(path: str, text: str) -> None:
    """The law above would pass any import."""
    assert len(graph_imports_astray(planted(text, path))) == 1
