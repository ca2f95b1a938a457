"""Trouble of the server while dispatch writes: what passes is waited out with the result in
hand; what does not fails the row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import Outcome, PipelineItem, PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    RUNNING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    StageDone,
    Task,
)
from rowlock.testing import TemporaryDatabase

from .renders import Fleet, Render, Scenes, settled, submit

REFUSALS = 3
FUNCTION = """
CREATE FUNCTION in_trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') <= {refusals} THEN
        RAISE EXCEPTION 'in trouble' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$
"""
TRIGGER = (
    "CREATE TRIGGER in_trouble BEFORE UPDATE ON renders FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION"
    " in_trouble()"
)
WHEN_RUNNING = f"NEW.status = '{RUNNING}' AND NEW.status <> OLD.status"
WHEN_STAGE = "NEW.stages::text <> OLD.stages::text"
WHEN_COMPLETED = f"NEW.status = '{COMPLETED}'"


class Asked(DispatchPipeline[Render]):
    async def process(self, item: PipelineItem[Render]) -> Outcome:
        self.attempts = getattr(self, "attempts", 0) + 1
        return await super().process(item)

    def on_refused(self, item: PipelineItem[Render], error: Exception) -> Outcome:
        self.asked = [*getattr(self, "asked", []), error]
        return super().on_refused(item, error)


async def refuse(
    database: TemporaryDatabase, code: str, *, when: str, refusals: int = REFUSALS
) -> None:
    """Have the server refuse so many updates; a sequence counts them, since it is not rolled
    back.
    """
    async with database.engine.begin() as connection:
        for statement in ("CREATE SEQUENCE tries", FUNCTION.format(code=code, refusals=refusals)):
            await connection.execute(text(statement))
        await connection.execute(text(TRIGGER.format(when=when)))


async def dispatched(database: TemporaryDatabase) -> tuple[Asked, Fleet, Render]:
    """Dispatch one row, whose handler records a stage, and return how that went."""
    scenes, fleet = Scenes(), Fleet(1)

    async def in_stages(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield StageDone("raw", "file")
        yield Completed({"url": "done"})

    scenes.answers["a"] = in_stages
    settings: Any = {"fetch_delays": (0.05, 0.1), "retry_delay": 0.05}
    renders = Asked(Render, handler=scenes, engine=fleet, **settings)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    return renders, fleet, row


@pytest.mark.parametrize(
    ("when", "code"),
    [
        (WHEN_RUNNING, "58030"),
        (WHEN_STAGE, "XX000"),
        *((WHEN_COMPLETED, code) for code in ("58030", "XX000", "25P02")),
    ],
)
async def test_what_was_done_is_written_when_the_trouble_has_passed(
    postgresql_database: TemporaryDatabase, when: str, code: str
) -> None:
    """Hours of work would be failed for good, or done again, because a disk did not answer for a
    moment.
    """
    await refuse(postgresql_database, code, when=when)
    renders, fleet, row = await dispatched(postgresql_database)
    assert (row.status, row.url, row.stages, row.error, row.losses) == (
        COMPLETED,
        "done",
        {"raw": "file"},
        None,
        0,
    )
    assert (fleet.begun["a"], renders.attempts) == (1, 1)
    assert getattr(renders, "asked", []) == []


@pytest.mark.parametrize("code", ["23514", "22003", "P0001"])
async def test_a_result_that_is_refused_for_good_fails_its_row_at_once(
    postgresql_database: TemporaryDatabase, code: str
) -> None:
    """A result that nobody will ever write would be tried until its lease ends, and its work
    done again and again.
    """
    await refuse(postgresql_database, code, when=WHEN_COMPLETED, refusals=1_000)
    renders, fleet, row = await dispatched(postgresql_database)
    assert (row.status, row.url, row.stages) == (FAILED, None, {"raw": "file"})
    assert (row.error or "").startswith("internal: ")
    assert (fleet.begun["a"], renders.attempts, len(renders.asked)) == (1, 1, 1)
