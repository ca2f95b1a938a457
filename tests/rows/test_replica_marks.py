"""Marks: a row by itself says which process has it."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from rowlock import PipelineManager, hold_rows
from rowlock.rows.lock_tokens import (
    OWN_MARK,
    Deaths,
    deaths_of,
    fresh_token,
    mark_of,
    replica_mark,
    with_deaths,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.scenes import add, read


def test_tokens_of_one_process_end_alike() -> None:
    """A row would not say who has it."""
    tokens = [
        fresh_token(),
        fresh_token(is_reserved=True),
        with_deaths(fresh_token(), Deaths(), in_crowd=True),
    ]
    assert {mark_of(token) for token in tokens} == {replica_mark()}
    assert {mark_of(str(token)) for token in tokens} == {replica_mark()}
    assert len({token.hex[:24] for token in tokens}) == 3


def test_a_fresh_token_is_a_random_uuid() -> None:
    """Whoever parses tokens would stumble over it, or two holders have one."""
    assert (fresh_token().version, fresh_token().variant) == (4, uuid.RFC_4122)
    assert len({fresh_token() for _ in range(1000)}) == 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_was_forked_has_another() -> None:
    """Rows of two processes would look as if one had them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, replica_mark().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    assert len(theirs) == len(replica_mark()) == 8
    assert theirs != replica_mark()


@pytest.mark.parametrize("pipeline_class", [VolumePipeline, RunPipeline])
async def test_a_claim_leaves_the_mark(
    database: TemporaryDatabase, pipeline_class: type[VolumePipeline]
) -> None:
    """Nobody could tell which replica has a row without a table of all tokens."""
    model = pipeline_class.model
    (row,) = await add(database, model())
    async with stepping(database.session_factory, pipeline_class()) as steps:
        (item,) = await steps.fetch_once()
        found = await read(database, row)
        assert mark_of(item.lock_token) == mark_of(found.lock_token) == replica_mark()


async def test_a_claim_behind_a_dead_holder_leaves_the_mark(database: TemporaryDatabase) -> None:
    """The count of deaths would stand where the mark is."""
    past = datetime.now(UTC) - timedelta(hours=1)
    await add(
        database, Volume(lock_token=uuid.uuid4(), lock_owner="VolumePipeline", lock_expires_at=past)
    )
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        (item,) = await steps.fetch_once()
        assert deaths_of(item.lock_token) == Deaths(counted=1)
        assert mark_of(item.lock_token) == replica_mark()


async def test_a_mark_that_has_changed_is_that_of_the_next_claim(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that was forked would claim under the mark of its parent, whose statement it has."""
    await add(database, *(Run() for _ in range(2)))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        (first,) = await steps.fetch_once(1)
        monkeypatch.setattr(OWN_MARK, "octets", bytes.fromhex("0123abcd"))
        (second,) = await steps.fetch_once(1)
    assert mark_of(first.lock_token) != mark_of(second.lock_token) == "0123abcd"


async def test_a_hold_leaves_the_mark(database: TemporaryDatabase) -> None:
    """A row that a service holds would not say which process that is."""
    (row,) = await add(database, Volume())
    async with hold_rows(database.session_factory, Volume, [row.id], timeout=5):
        found = await read(database, row)
        assert mark_of(found.lock_token) == replica_mark()


async def test_the_log_names_the_mark(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could tell from the logs of which replica a mark is."""
    await add(database)
    with caplog.at_level("INFO", "rowlock"):
        async with PipelineManager(database.session_factory):
            pass
    assert [line for line in caplog.messages if replica_mark() in line]
