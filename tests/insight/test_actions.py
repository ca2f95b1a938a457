"""What a person does to rows: only to what that person has seen, and never unnoticed."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict

import pytest

from rowlock import Apply, Outcome, PipelineError, PipelineItem, pipeline_hinter
from rowlock.errors import AppError, ModelError
from rowlock.insight.actions import Actions
from rowlock.insight.steering import LeaseAlive, RowNotFound
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.related_scenes import GatheringPipeline, add_volume, attachments_of
from ..pipelines.scenes import add, change, is_free, read

pytestmark = pytest.mark.either_database(
    but=[
        "test_a_row_of_a_dead_replica_is_released",
        "test_a_live_lease_needs_force",
        "test_what_its_holder_has_locked_for_it_is_freed",
        "test_a_row_is_parked_put_back_and_made_due",
    ]
)


class Said(TypedDict):
    by: str
    reason: str


BY: Said = {"by": "alice", "reason": "provider down"}
AUDIT = "rowlock.audit"


class Seen(NamedTuple):
    """The lease of a row, as a person was shown it."""

    owner: str | None
    token: str | None


async def seen_on(database: TemporaryDatabase, row: Any) -> Seen:
    """Return what a person sees of the lease on `row` now."""
    there = await read(database, row)
    return Seen(there.lock_owner, there.lock_token and str(there.lock_token))


def actions_on(database: TemporaryDatabase, *pipelines: Any) -> Actions:
    """Return the actions of an app with these pipelines."""
    return Actions(database.session_factory, pipelines or (VolumePipeline(), RunPipeline()))


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return who did what, and what came of it, of each line of the audit."""
    return [
        (vars(one)["rowlock_actor"], vars(one)["rowlock_action"], vars(one)["rowlock_result"])
        for one in caplog.records
        if one.name == AUDIT
    ]


async def test_a_row_of_a_dead_replica_is_released(
    database_with_clock: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A person would have to write SQL at three in the morning."""
    database = database_with_clock
    assert database.clock is not None
    caplog.set_level(logging.INFO, AUDIT)
    [volume] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        seen = await seen_on(database, volume)
        database.clock.advance(31)
        done = await actions_on(database).release("volumes", str(volume.id), seen=seen, **BY)
    assert is_free(await read(database, volume))
    assert done.text() == f"volumes {volume.id} released"
    assert told(caplog) == [("alice", "release", "done")]


async def test_a_live_lease_needs_force(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A holder at work would lose its row to somebody who has not thought of it."""
    caplog.set_level(logging.INFO, AUDIT)
    [volume] = await add(database, Volume())
    actions = actions_on(database)
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        seen = await seen_on(database, volume)
        with pytest.raises(LeaseAlive, match="use force") as raised:
            await actions.release(Volume, volume.id, seen=seen, **BY)
        assert raised.value.owner == "VolumePipeline"
        assert 0 < raised.value.seconds_left <= 30
        assert await seen_on(database, volume) == seen
        await actions.release(Volume, volume.id, seen=seen, force=True, **BY)
    assert is_free(await read(database, volume))
    refused, done = told(caplog)
    assert (refused, done) == (
        ("alice", "release", "refused: LeaseAlive"),
        ("alice", "release", "done"),
    )


async def test_what_its_holder_has_locked_for_it_is_freed(database: TemporaryDatabase) -> None:
    """Children of a released row would keep their own pipelines waiting."""
    volume = await add_volume(database, attachments=2)
    pipeline = GatheringPipeline()
    async with stepping(database.session_factory, pipeline) as steps:
        [item] = await steps.fetch_once()
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        actions = actions_on(database, GatheringPipeline())
        seen = await seen_on(database, volume)
        await actions.release("Volume", str(volume.id), seen=seen, force=True, **BY)
        assert all(map(is_free, await attachments_of(database)))


async def test_a_row_is_parked_put_back_and_made_due(
    database_with_clock: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what can be done to a row, one thing would not be what it says."""
    database = database_with_clock
    assert database.clock is not None
    caplog.set_level(logging.INFO, AUDIT)
    [run] = await add(database, Run(id=1, attempts=3))
    actions = actions_on(database)
    assert (await actions.park("Run", "1", **BY)).outcome == "parked"
    there = await read(database, run)
    assert (there.parked_at, there.last_error) == (
        database.clock.now,
        "parked by alice: provider down",
    )
    assert (await actions.unpark("Run", "1", **BY)).outcome == "put back, due now"
    there = await read(database, run)
    assert (there.parked_at, there.attempts, there.due_at) == (None, 0, database.clock.now)
    await change(database, run, due_at=database.clock.now + timedelta(hours=1), attempts=5)
    assert (await actions.unpark("runs", 1, **BY)).outcome == "was not parked"
    assert (await read(database, run)).attempts == 5
    await actions.make_due(Run, 1, **BY)
    assert (await read(database, run)).due_at == database.clock.now
    assert [(action, result) for _, action, result in told(caplog)] == [
        ("park", "done"),
        ("unpark", "done"),
        ("unpark", "was not parked"),
        ("make_due", "done"),
    ]


async def test_a_row_at_work_is_parked_behind_its_outcome(database: TemporaryDatabase) -> None:
    """A row that fails and fails could not be stopped while it is at work."""
    [run] = await add(database, Run(id=1))

    async def park_at_work(item: PipelineItem[Any]) -> Outcome:
        await actions_on(database).park(Run, 1, **BY)
        return Apply({"result": {"done": 1}})

    async with stepping(database.session_factory, RunPipeline(answer=park_at_work)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        there = await read(database, run)
        assert (there.result, there.last_error) == ({"done": 1}, "parked by alice: provider down")
        assert there.parked_at is not None
        assert await steps.fetch_once() == []


Doing = Callable[[Actions, Any], Awaitable[Any]]
ACTS: dict[str, Doing] = {
    "release": lambda actions, row: actions.release(type(row), row.id, seen=Seen(None, None), **BY),
    "park": lambda actions, row: actions.park(type(row), row.id, **BY),
    "unpark": lambda actions, row: actions.unpark(type(row), row.id, **BY),
    "make_due": lambda actions, row: actions.make_due(type(row), row.id, **BY),
}


@pytest.mark.parametrize("act", ACTS)
async def test_a_row_that_is_not_there_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, act: str
) -> None:
    """A typing error would look as if the row had been helped."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1))
    with pytest.raises(RowNotFound, match="Run has no row 2"):
        await ACTS[act](actions_on(database), Run(id=2))
    assert told(caplog) == [("alice", act, "refused: RowNotFound")]


@pytest.mark.parametrize("act", ACTS)
async def test_pipelines_are_hinted_behind_the_commit(
    database: TemporaryDatabase, act: str
) -> None:
    """A row that was put back would wait for the next poll."""
    [run] = await add(database, Run(id=1))
    if act == "unpark":
        await actions_on(database).park(Run, 1, **BY)
    hints: list[str] = []

    def wake() -> None:
        hints.append(act)

    pipeline_hinter.attach("Run", wake)
    try:
        await ACTS[act](actions_on(database), run)
    finally:
        pipeline_hinter.detach("Run", wake)
    assert hints == [act]


async def test_without_a_pipeline_here_no_hint_is_missed(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A command line would warn, at each action, that nobody was hinted."""
    [run] = await add(database, Run(id=1))
    await actions_on(database).make_due(Run, run.id, **BY)
    assert [one for one in caplog.records if one.levelno > logging.INFO] == []


@pytest.mark.parametrize(
    ("who", "match"),
    [
        ({"by": "alice", "reason": ""}, "`reason` is a text of 1 to 200"),
        ({"by": "alice", "reason": "x" * 201}, "`reason` is a text of 1 to 200"),
        ({"by": " ", "reason": "down"}, "`by` is a text of 1 to 100"),
        ({"by": "x" * 101, "reason": "down"}, "`by` is a text of 1 to 100"),
        ({"by": None, "reason": "down"}, "`by` is a text of 1 to 100"),
    ],
)
async def test_nobody_acts_for_no_reason(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, who: dict[str, Any], match: str
) -> None:
    """Nobody could say later who did it, and why; or a column could not hold it."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1))
    with pytest.raises(PipelineError, match=match):
        await actions_on(database).park(Run, 1, **who)
    assert (await read(database, Run(id=1))).parked_at is None
    assert [result for _, _, result in told(caplog)] == ["refused: PipelineError"]


async def test_what_cannot_be_meant_is_refused(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in a command would be an error of the database."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1), Volume())
    actions = actions_on(database)
    with pytest.raises(AppError, match="no model of this app"):
        await actions.park("Nothing", "1", **BY)
    with pytest.raises(AppError, match="is no key of Run"):
        await actions.park("Run", "one", **BY)
    with pytest.raises(ModelError, match="ScheduleColumns"):
        await actions.park("Volume", str(uuid.uuid4()), **BY)
    assert [result for _, _, result in told(caplog)] == [
        "refused: AppError",
        "refused: AppError",
        "refused: ModelError",
    ]


async def test_no_line_of_the_audit_can_be_forged(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A reason with a newline would be a second line, by somebody else."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1))
    forged = "down\nbob: release of Run 1 \x1b[2J\u202e"
    await actions_on(database).park(Run, 1, by="alice\r", reason=forged)
    [line] = [one for one in caplog.records if one.name == AUDIT]
    for text in (line.getMessage(), vars(line)["rowlock_reason"], vars(line)["rowlock_actor"]):
        assert all(character.isprintable() for character in text)
    assert "\\x0a" in line.getMessage()


async def test_each_action_is_told_however_many_there_are(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a hundred actions thirty would be told, and the others counted."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1))
    actions = actions_on(database)
    for _ in range(40):
        await actions.make_due(Run, 1, **BY)
    assert len(told(caplog)) == 40
