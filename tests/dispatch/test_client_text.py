"""Tests of what clients read: kinds, no paths, bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event

from rowlock import PipelineError, PipelineManager
from rowlock.dispatch import FAILED, AttemptEvent, Completed, Failed, Progress, StageDone, Task
from rowlock.dispatch.columns import error_of, failure_of, progress_of, without_paths
from rowlock.testing import TemporaryDatabase

from .renders import Fleet, Render, Scenes, all_renders, one_render, pipeline_of, settled, submit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: '/var/lib/app/scene.blend'", "no such file: 'scene.blend'"),
        ("C:\\Users\\me\\scene.blend is broken", "scene.blend is broken"),
        ("\\\\server\\share\\scene.blend", "scene.blend"),
        ("see https://example.org/help/me?x=1", "see https://example.org/help/me?x=1"),
        ("3/4 done, 12/25", "3/4 done, 12/25"),
        ("and/or", "and/or"),
        ("/tmp", "/tmp"),
        ("(/srv/a/b/c.py, line 7)", "(c.py, line 7)"),
        ("", ""),
    ],
)
def test_paths_are_stripped_and_nothing_else(text: str, shown: str) -> None:
    """Clients would learn how our machines look, or could not read what went wrong."""
    assert without_paths(text) == shown


def test_errors_begin_with_their_kind_and_are_bounded() -> None:
    """Clients that tell errors apart by their kind would be lost; a traceback would fill the
    table.
    """
    assert error_of("capacity", "no worker") == "capacity: no worker"
    assert len(error_of("internal", "x" * 5000)) == 1024
    assert error_of("Not a kind: at all", "x").startswith("internal: ")
    assert error_of("internal", "nul \x00 and \ud800") == "internal: nul � and ?"
    assert len(progress_of("x" * 5000)) == 256
    assert progress_of(7) == "7"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("input", "input: x"),
        ("internal", "internal: x"),
        ("out of paper", "out of paper: x"),
        ("Input", "internal: Input: x"),
        ("", "internal: : x"),
        ("a" * 33, f"internal: {'a' * 33}: x"),
        (7, "internal: 7: x"),
        ("capacity", "internal: capacity: x"),
        ("stale", "internal: stale: x"),
        ("heartbeat lost", "internal: heartbeat lost: x"),
        ("cancelled", "internal: cancelled: x"),
    ],
)
def test_kinds_of_the_hosts_own(kind: Any, error: str) -> None:
    """A client would take a handler's failure for work that found no worker, and come back; or
    could not tell kinds apart.
    """
    assert failure_of(kind, "x") == error


UNSTORABLE = ("a\x00b", "a\ud800b")
IDS = ("NUL", "surrogate")


@pytest.mark.parametrize(
    "key", [*UNSTORABLE, "", "a" * 256, 7], ids=[*IDS, "empty", "long", "number"]
)
@pytest.mark.parametrize("method", ["submit", "cancel"])
async def test_a_bad_key_leaves_the_transaction_of_the_caller_as_it_was(
    database: TemporaryDatabase, method: str, key: Any
) -> None:
    """A key from outside, such as a header, would abort what else the caller has written in its
    transaction.
    """
    renders, statements = pipeline_of(Fleet(1)), list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async with database.session_factory() as session:
        await renders.submit(session, dedup_key="good", scene="written before")
        event.listen(database.engine.sync_engine, "before_cursor_execute", note)
        with pytest.raises(PipelineError, match="dedup_key must be a text of 1 to 255 characters"):
            await getattr(renders, method)(session, dedup_key=key)
        assert statements == []
        await session.commit()
    assert (await one_render(database)).scene == "written before"


async def test_a_key_may_have_every_other_character(database: TemporaryDatabase) -> None:
    """A key that a database takes would be refused."""
    renders, keys = pipeline_of(Fleet(1)), ["\x01\t\n\x7f", "𝄞", "\ufffd", "\uffff", "é" * 255]
    await submit(database, renders, *keys)
    assert {row.dedup_key for row in await all_renders(database)} == set(keys)


async def test_a_reason_that_cannot_be_stored_is_written_without_it(
    database: TemporaryDatabase,
) -> None:
    """A cancellation would abort its caller's transaction for a text that only people read."""
    renders = pipeline_of(Fleet(1))
    await submit(database, renders, "a")
    async with database.session_factory.begin() as session:
        await renders.cancel(session, dedup_key="a", reason="nul \x00 and \ud800")
    assert (await one_render(database)).error == "cancelled: nul � and ?"


async def test_whatever_a_worker_or_a_handler_says_is_written_without_what_cannot_be_stored(
    database: TemporaryDatabase,
) -> None:
    """One character in a worker's name or in a progress would fail hours of work, for a reason
    that is none of it.
    """
    scenes, fleet = Scenes(), Fleet()
    fleet._active["worker\x00\ud800"] = 0

    async def speaks(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("half \x00\ud800")
        yield StageDone("raw", {"file": "raw\x00\ud800"})
        yield Failed("in\x00put\ud800", "no \x00\ud800", detail="where \x00\ud800")

    scenes.answers["a"] = speaks
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    assert (row.status, row.worker, row.progress) == (FAILED, "worker�?", "half �?")
    assert row.error == "internal: in�put?: no �?"
    assert row.stages == {"raw": {"file": "raw\x00\ud800"}}


@pytest.mark.parametrize("name", [*UNSTORABLE, 1], ids=[*IDS, "number"])
async def test_a_stage_whose_name_cannot_be_stored_is_refused(
    database: TemporaryDatabase, name: Any
) -> None:
    """The next attempt would not know a stage by a name that was changed, as a number is by JSON,
    and do it again; or the database would refuse it.
    """
    scenes = Scenes()

    async def records(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield StageDone(name)
        yield Completed()

    scenes.answers["a"] = records
    renders = pipeline_of(Fleet(1), scenes)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    assert (row.status, row.stages) == (FAILED, {})
    assert (row.error or "").startswith("internal: a stage's name must be a text without NUL")
