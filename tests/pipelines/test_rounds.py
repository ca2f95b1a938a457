"""Rows that come back as they were rest longer and longer, and are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import make_transient_to_detached

from rowlock import NOW_PLACEHOLDER, Apply, Outcome, PipelineManager, events
from rowlock.pipelines import planner as rounds
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Base, Run, RunPipeline, heard_events
from .hostile import RaisingMapping
from .scenes import add, ticket

WHILE_S = 700.0
NOW = datetime(2031, 5, 17, tzinfo=UTC)
FIRST_S, MOST_S = 10.0, 160.0


class Patient(RunPipeline):
    """Rests for a while after each success."""

    min_processing_interval = FIRST_S
    retry_delay_max = MOST_S
    # Beats and polls would take most of the time, and are not what this is about.
    fetch_delays = (2,)
    lock_timeout = 1200


class Contrary(Patient):
    """Works on the same rows."""


async def told_in_a_while(
    database: TemporaryDatabase, *pipelines: Patient, **values: Any
) -> tuple[list[events.RowUnchanged], int]:
    """Return what is told of one row, and how often it was worked on."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Run(id=1, **values))
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, list(pipelines)):
            await asyncio.sleep(WHILE_S)
    return heard.of(events.RowUnchanged), len(heard.of(events.ItemStarted))


def change(outcome: Apply) -> rounds.RowChange | None:
    """Return the change that it makes to a queued run."""
    item, row = ticket(), Run(id=1, status="queued", result=None, last_processed_at=NOW)
    make_transient_to_detached(row)
    item.row = row
    return rounds.change_of(LeasedTable.of(Run), item, outcome)


def unchanged(_item: Any) -> Outcome:
    """Do nothing for the row, which stays ready."""
    return Apply()


def the_same(item: Any) -> Outcome:
    """Write what is there already."""
    return Apply({"status": item.row.status})


def at_a_pace_of_its_own(_item: Any) -> Outcome:
    """Say when to look again."""
    return Apply(after=FIRST_S)


def stamped(_item: Any) -> Outcome:
    """Write when the row was looked at."""
    return Apply({"updated_at": NOW_PLACEHOLDER})


@pytest.mark.parametrize("answer", [unchanged, the_same])
def test_a_row_that_comes_back_unchanged_is_looked_at_more_and_more_rarely(
    virtual_database: TemporaryDatabase,
    answer: Callable[[Any], Outcome],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pipeline that forgot to change what it asks for would work for ever, without a word."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        with caplog.at_level(logging.WARNING, "rowlock"):
            told, started = await told_in_a_while(virtual_database, Patient(answer=answer))
        assert [event.rest_s for event in told[:5]] == [20, 40, 80, 160, 160]
        assert [event.rounds for event in told[:5]] == [1, 2, 3, 4, 5]
        # Without rests it would be 55.
        assert 7 <= started <= 12
        assert any("is ready again after Apply" in one.getMessage() for one in caplog.records)

    play()


@pytest.mark.parametrize("answer", [at_a_pace_of_its_own, stamped])
def test_who_says_so_looks_again_at_the_same_pace(
    virtual_database: TemporaryDatabase, answer: Callable[[Any], Outcome]
) -> None:
    """A pipeline that polls a provider would notice a change minutes too late."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        told, started = await told_in_a_while(virtual_database, Patient(answer=answer))
        assert not told
        assert started > WHILE_S / (FIRST_S + 5)

    play()


def test_two_pipelines_that_undo_each_others_work_come_to_rest(
    virtual_database: TemporaryDatabase,
) -> None:
    """Both would succeed for ever: nothing fails, and nothing is achieved."""

    class Back(Patient):
        def ready(self) -> Any:
            return Run.status == "done"

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        there, back = Patient(), Back(answer=lambda item: Apply({"status": "queued"}))
        told, started = await told_in_a_while(virtual_database, there, back)
        # One of them backs off: with its rests, the other is not soon enough to be in a circle.
        assert max(event.rest_s for event in told) == MOST_S
        assert started < 40

    play()


def test_what_a_service_wants_again_is_done_without_delay(
    virtual_database: TemporaryDatabase,
) -> None:
    """A person who restarts something every minute would wait longer each time."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        pipeline = Patient()
        database = virtual_database
        await database.create_tables(Base.metadata)
        async with database.session_factory.begin() as session:
            session.add(Run(id=1))
        with heard_events() as heard:
            async with PipelineManager(database.session_factory, [pipeline]):
                for _ in range(10):
                    await asyncio.sleep(60)
                    async with database.session_factory.begin() as session:
                        (await session.get_one(Run, 1)).status = "queued"
                await asyncio.sleep(60)
        assert not heard.of(events.RowUnchanged)
        assert len(heard.of(events.ItemApplied)) == 11

    play()


class EverySecond:
    """A schedule."""

    def next_after(self, now: datetime) -> datetime:
        """Return the next second."""
        return now + timedelta(seconds=FIRST_S)


def test_a_row_with_a_schedule_goes_by_it(virtual_database: TemporaryDatabase) -> None:
    """It would be told that it rests, and does not."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        kind = type("Scheduled", (Patient,), {"schedule": EverySecond()})
        told, started = await told_in_a_while(virtual_database, kind(answer=unchanged))
        assert not told
        assert started > WHILE_S / (FIRST_S + 5)

    play()


def test_a_row_that_was_written_past_its_lease_is_not_as_it_was(
    virtual_database: TemporaryDatabase,
) -> None:
    """A pipeline that writes its progress by itself would become slower with each step."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        async def answer(item: Any) -> Outcome:
            async with item.session() as session, session.begin():
                await session.execute(update(Run).values(result=(item.row.result or 0) + 1))
            return Apply()

        told, _ = await told_in_a_while(virtual_database, Patient(answer=answer))
        assert not told

    play()


def test_slow_pipelines_that_undo_each_others_work_come_to_rest(
    virtual_database: TemporaryDatabase,
) -> None:
    """Only what is quick would be seen to go round."""

    async def slowly(outcome: Outcome) -> Outcome:
        await asyncio.sleep(30)
        return outcome

    class Back(Patient):
        def ready(self) -> Any:
            return Run.status == "done"

    @virtual_time(max_virtual_s=4 * WHILE_S)
    async def play() -> None:
        there = Patient(answer=lambda item: slowly(Apply({"status": "done"})))
        back = Back(answer=lambda item: slowly(Apply({"status": "queued"})))
        told, _ = await told_in_a_while(virtual_database, there, back)
        assert told

    play()


def test_a_change_begins_anew(virtual_database: TemporaryDatabase) -> None:
    """A row that was stuck once would be slow for ever."""

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        answers = [Apply()] * 5
        answers += [Apply({"result": 1}), Apply({"result": None})] + [Apply()] * 3

        def answer(_item: Any) -> Outcome:
            return answers.pop(0) if answers else Apply({"status": "done"})

        told, _ = await told_in_a_while(virtual_database, Patient(answer=answer))
        assert [event.rest_s for event in told] == [20, 40, 80, 20, 40]

    play()


def test_what_is_remembered_is_bounded_and_rows_that_go_round_are_kept(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows that stay ready would fill the memory; or each would push out the one before,
    and none be told.
    """
    monkeypatch.setattr(rounds, "ROWS_MAX", 2)

    @virtual_time(max_virtual_s=2 * WHILE_S)
    async def play() -> None:
        pipeline = Patient(answer=unchanged)
        await add(virtual_database, *(Run(id=number) for number in range(1, 6)))
        with heard_events() as heard:
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                await asyncio.sleep(200)
                assert len(pipeline.run.settler.recorder.rounds) == 2
        assert len({event.row_id for event in heard.of(events.RowUnchanged)}) == 2

    play()


class Size(Enum):
    """What a host may have in a column."""

    SMALL = 1


@pytest.mark.parametrize("value", [{"a": 1}, [1], select(1), RaisingMapping(SystemExit())])
def test_what_cannot_be_compared_is_no_round(value: object) -> None:
    """The host's own object would end the transaction that it is written in."""
    assert change(Apply({"result": value})) is None


def test_the_first_change_of_a_row_is_not_remembered() -> None:
    """Each row that is done once would take room and time."""
    item, row = ticket(), Run(id=1, status="queued", last_processed_at=None)
    make_transient_to_detached(row)
    item.row = row
    assert rounds.change_of(LeasedTable.of(Run), item, Apply()) is None


@pytest.mark.parametrize("value", [None, "text", 1, Size.SMALL])
def test_what_can_be_compared_is_told_apart(value: object) -> None:
    """Rows that are of an enum would never be seen to go round."""
    assert change(Apply({"result": value})) != change(Apply({"result": "other"}))
    same = change(Apply({"status": "queued"}))
    assert same is not None
    assert same.is_none
