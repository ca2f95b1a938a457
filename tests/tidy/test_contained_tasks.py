"""Every task that may run code of the host is started by ``tasks.py``; the few others are
named here, with their reasons.
"""

from __future__ import annotations

import ast

from .reading import Source, package, planted

BARE: dict[str, str] = {
    "src/rowlock/tasks.py": (
        "it is the helper; its loops let a KeyboardInterrupt through, which is the user's"
    ),
    "src/rowlock/pipelines/attempt.py": (
        "whatever the call raises is a value; and this is done for each row"
    ),
    "src/rowlock/pipelines/worker.py": (
        "whatever escapes releases the row; and this is done for each row"
    ),
    "src/rowlock/pipelines/context.py": "whatever a background task raises is logged by itself",
    "src/rowlock/dispatch/attempt.py": "whatever the handler raises is an event",
    "src/rowlock/graph/event_loop.py": (
        "whatever a call raises is the error of its node; and this is done for each call"
    ),
    "src/rowlock/dialects/sqlite/transactions.py": (
        "the driver's ROLLBACK, in the thread of its connection"
    ),
}
STARTS = ("create_task", "ensure_future", "begin_task")
OUTSIDE = ("src/rowlock/testing/", "src/rowlock/demo/")
"""Rooms that run beside no host."""


def bare_tasks(tree: list[Source]) -> list[str]:
    """Find tasks that are started without containment, in files that are not named above."""
    return [
        source.finding(
            node, "a SystemExit out of this task ends the event loop: use contained_task"
        )
        for source in tree
        if source.path not in BARE and not source.path.startswith(OUTSIDE)
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and node.attr in STARTS)
        or (isinstance(node, ast.Name) and node.id in STARTS)
    ]


def test_every_task_is_contained() -> None:
    """A ``SystemExit`` of an engine, a listener or a session factory would end the host's event
    loop.
    """
    assert bare_tasks(package()) == []


def test_the_exceptions_are_needed() -> None:
    """A file that starts no such task any more would keep its leave."""
    paths = {
        source.path
        for source in package()
        if any(f".{start}" in source.text or f"{start}(" in source.text for start in STARTS)
    }
    assert set(BARE) <= paths


def test_this_law_bites() -> None:
    """A law that finds nothing would be taken for a house without tasks."""
    assert len(bare_tasks(planted("asyncio.create_task(work())\n"))) == 1
    assert len(bare_tasks(planted('begin_task(work(), name="work")\n'))) == 1
