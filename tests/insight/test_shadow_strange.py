"""A shadow run beside strange hosts: what one row or one look meets costs nothing else."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from sqlalchemy import text

from rowlock import Apply, events
from rowlock.insight import Insight
from rowlock.insight.shadowing.snapshot import is_same
from rowlock.testing import TemporaryDatabase

from ..host import heard_events
from .shadowed import LONG, NAME, Job, JobPipeline, Unfit, filled, shadowed, work_of


def test_what_equals_nothing_is_compared_all_the_same() -> None:
    """A row that holds a NaN would always have changed; or a value of the host's end the run, with
    an exit code that says that all is well.
    """
    assert is_same(float("nan"), float("nan"))
    assert is_same(float("nan"), 1.0) is False
    assert is_same(Unfit(), "new") is None


async def test_a_failing_rehearsal_rings_no_alarm(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that alerts by failures would wake a person for code that is not deployed."""
    await filled(sqlite_database, Job(id=1))
    pipeline = JobPipeline(work_of({1: ValueError("no disk")}))
    insight = Insight(
        sqlite_database.session_factory,
        [pipeline],
        redact=lambda text: text.replace("no disk", "***"),
    )
    with heard_events() as heard:
        await insight.shadow(NAME, wait=timedelta(0))
        rehearsal = await insight.rehearse(NAME, [1])
    assert rehearsal.rows[0].reason == "ValueError: ***"
    assert not heard.of(events.ItemFailed)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "rehearsing row 1 failed" in caplog.text


async def test_a_row_that_cannot_be_read_costs_no_other(
    sqlite_database: TemporaryDatabase,
) -> None:
    """One bad value would end a whole run, and its error show what is hidden."""
    await filled(sqlite_database, *(Job(id=number) for number in (1, 2, 3)))

    async def spoil(column: str, number: int) -> None:
        async with sqlite_database.session_factory.begin() as session:
            spoilt = text(f"UPDATE jobs SET {column} = 'do-not tell' WHERE id = {number}")
            await session.execute(spoilt)

    async def meanwhile() -> None:
        await spoil("done_at", 3)

    await spoil("document", 2)
    work = work_of({number: Apply({"status": "done"}) for number in (1, 2, 3)})
    run = await shadowed(sqlite_database, work, work, before=meanwhile, wait=LONG)
    assert [(row.verdict.value, row.reason) for row in run.rows] == [
        ("same", None),
        ("not_compared", "document cannot be read"),
        ("not_compared", "done_at cannot be read"),
    ]
    assert "do-not" not in run.text()
