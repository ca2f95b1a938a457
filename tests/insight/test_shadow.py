"""A shadow run: `process` is run beside the replicas that live, on the rows that they work on; none
is held, and only what is comparable counts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    ConfigurationError,
    Delete,
    Outcome,
    Park,
    PipelineItem,
    events,
    hold_rows,
)
from rowlock.errors import AppError
from rowlock.insight import Insight
from rowlock.insight.rehearsing import attempt as attempt_module
from rowlock.insight.shadowing.comparison import live_kind, was_worked_on_again
from rowlock.insight.shadowing.snapshot import RowLook, SnapshotRow
from rowlock.insight.shadowing.watching import WatchRules
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import heard_events
from .shadowed import (
    LONG,
    NAME,
    Job,
    JobPipeline,
    Looks,
    Plain,
    PlainPipeline,
    Team,
    Unfit,
    filled,
    shadowed,
    work_of,
)


async def with_team(item: PipelineItem[Any]) -> Apply:
    """Write a related row, too."""
    [team] = await item.lock_related(Team, Team.id == 1)
    return Apply({"status": "done"}, related={team: {"done": 1}}, hint=Team)


async def committing(item: PipelineItem[Any]) -> Apply:
    """Write by a session of its own."""
    async with item.session() as session:
        await session.execute(update(Job).values(status="stolen"))
        await session.commit()
    return Apply({"status": "done"})


DONE = Apply({"status": "done"})
THEN = datetime(2026, 11, 22, 3, 14, 5, tzinfo=UTC)
CASES: dict[str, tuple[Any, Any, str]] = {
    "same": (DONE, DONE, "same, applied"),
    "another value": (
        DONE,
        Apply({"status": "fai\x1bled"}),
        "differs, applied | status: live 'done', shadow 'fai\\x1bled'",
    ),
    "one writes less": (
        Apply({"status": "done", "price": Decimal("1.50")}),
        DONE,
        "differs, applied | price: live 1.50, shadow null",
    ),
    "one writes more": (
        DONE,
        Apply({"status": "done", "price": Decimal("1.50")}),
        "differs, applied | price: live null, shadow 1.50",
    ),
    "as the columns keep it": (
        Apply({"status": "done", "price": Decimal("0.10"), "document": {"a": [1, 2]}}),
        Apply({"status": "done", "price": 0.1, "document": {"a": (1, 2)}}),
        "same, applied",
    ),
    "parked": (
        DONE,
        Park("no cloud"),
        "differs, live applied, shadow parked: no cloud | outcome: live applied, shadow parked"
        " | status: live 'done', shadow 'new'",
    ),
    "parked by the other": (
        Park("token do-not"),
        DONE,
        "differs, live parked (token ***), shadow applied | outcome: live parked, shadow applied"
        " | status: live 'new', shadow 'done'",
    ),
    "both parked": (Park("no disk"), Park("do-not mind"), "same, parked: *** mind"),
    "both deleted": (Delete(), Delete(), "same, deleted"),
    "deleted": (
        Delete(),
        DONE,
        "differs, live deleted, shadow applied | outcome: live deleted, shadow applied",
    ),
    "kept": (
        DONE,
        Delete(),
        "differs, live applied, shadow deleted | outcome: live applied, shadow deleted"
        " | status: live 'done', shadow 'new'",
    ),
    "the same failure": (
        ValueError("disk 1"),
        ValueError("disk 2"),
        "same, retried: ValueError: disk 2",
    ),
    "another failure": (
        ValueError("no"),
        KeyError("no"),
        "differs, retried: KeyError: 'no' | error: live ValueError, shadow KeyError",
    ),
    "hidden": (
        Apply({"status": "done", "secret": "do-not"}),
        Apply({"status": "done", "secret": "tell"}),
        "differs, applied | secret: live (hidden), shadow (hidden)",
    ),
    "the time of the outcome": (
        Apply({"status": "done", "done_at": NOW_PLACEHOLDER, "document": [NOW_PLACEHOLDER]}),
        Apply({"status": "done", "done_at": NOW_PLACEHOLDER, "document": [NOW_PLACEHOLDER]}),
        "same, applied",
    ),
    "a time of a clock": (
        Apply({"status": "done", "done_at": THEN}),
        Apply({"status": "done", "done_at": NOW_PLACEHOLDER}),
        "same, applied | not compared: done_at: the shadow writes the time of its transaction",
    ),
    "two times of clocks": (
        Apply({"status": "done", "done_at": THEN}),
        Apply({"status": "done", "done_at": THEN + timedelta(seconds=1)}),
        "differs, applied | done_at: live 2026-11-22T03:14:05Z, shadow 2026-11-22T03:14:06Z",
    ),
    "an expression": (
        DONE,
        Apply({"status": func.lower("DONE")}),
        "same, applied | not compared: status: the shadow writes an SQL expression",
    ),
    "ignored": (
        Apply({"status": "done", "document": {"a": 1}}),
        Apply({"status": "done", "document": {"a": 2}}),
        "same, applied",
    ),
    "due again": (
        Apply({"status": "done"}, after=60),
        Apply({"status": "done"}, after=60),
        "same, applied",
    ),
    "a related row": (
        with_team,
        with_team,
        "same, applied | related rows would be written, too | hints Team",
    ),
    "no value of the column": (
        DONE,
        Apply({"status": "done", "done_at": "soon"}),
        "differs, applied | done_at: live null, shadow 'soon', which the database refuses",
    ),
    "no value at all": (
        DONE,
        Apply({"status": Unfit()}),
        "not compared: RuntimeError: nothing to see",
    ),
    "a commit": (
        DONE,
        committing,
        "differs, live applied, shadow retried | outcome: live applied, shadow retried"
        " | status: live 'done', shadow 'new'",
    ),
}
"""What a live replica and the shadow come to, and the lines that say so."""


async def test_what_both_write_is_compared(database: TemporaryDatabase) -> None:
    """A deploy would be judged by what a row does not say, or a difference be taken for none."""
    cases = dict(enumerate(CASES.values(), start=1))
    ignoring = [*CASES].index("ignored") + 1
    await filled(database, Team(id=1), *(Job(id=number) for number in cases))
    live = work_of({number: case[0] for number, case in cases.items()})
    shadow = work_of({number: case[1] for number, case in cases.items()})
    kept = {"hide": [Job.secret], "redact": lambda text: text.replace("do-not", "***")}
    run = await shadowed(database, live, shadow, insight=kept, rows=len(cases), wait=LONG)
    found = {int(row.row_id): " | ".join(map(str.strip, row.lines("Job"))) for row in run.rows}
    committed = [*CASES].index("a commit") + 1
    found[committed] = found[committed].replace(f": {run.rows[committed - 1].reason}", "")
    expected = {number: f"Job {number}: {case[2]}" for number, case in cases.items()}
    expected[ignoring] = (
        f"Job {ignoring}: differs, applied | document: live {{'a': 1}}, shadow {{'a': 2}}"
    )
    assert found == expected
    assert "read" in str(run.rows[committed - 1].reason)
    assert (run.needs_person, run.compared) == (True, len(cases) - 1)
    [advice] = [line for line in run.text().splitlines() if line.startswith("!")]
    assert advice == "! done_at holds times; if process reads them from a clock: --ignore done_at"
    assert "do-not" not in str(run.to_dict())


async def test_ignored_columns_and_due_times(database: TemporaryDatabase) -> None:
    """What differs by its nature would hide what differs; or a row be due at another time."""
    await filled(database, Job(id=1), Job(id=2))
    live = work_of({1: Apply({"document": 1, "status": "done"}), 2: Apply(after=3600)})
    shadow = work_of({1: Apply({"document": 2, "status": "done"}), 2: Apply(after=60)})
    run = await shadowed(database, live, shadow, wait=LONG, ignore=[Job.document])
    one, other = run.rows
    assert (one.verdict, one.not_compared) == ("same", ())
    assert [(each.column, other.verdict) for each in other.differences] == [("due_at", "differs")]


async def test_rows_without_a_schedule_say_less(database: TemporaryDatabase) -> None:
    """A failure would be taken for a success, of which such a row tells nothing."""
    await filled(database, Plain(id=1), Plain(id=2), Plain(id=3))
    live = work_of({1: DONE, 2: ValueError("no"), 3: DONE})
    shadow = work_of({1: DONE, 2: Apply(), 3: Delete()})
    run = await shadowed(database, live, shadow, pipeline=PlainPipeline, wait=LONG)
    assert [(row.verdict, row.live, row.shadow) for row in run.rows] == [
        ("same", None, "applied"),
        ("same", None, "applied"),
        ("differs", None, "deleted"),
    ]
    assert run.rows[1].not_compared[0].startswith("outcome: without ScheduleColumns")


async def test_replicas_work_while_the_shadow_does(database: TemporaryDatabase) -> None:
    """A replica would be kept from a row as long as the shadow looks at it; or a `process` that
    guards would find a row that is gone.
    """
    await filled(database, Job(id=1), Job(id=2), Job(id=3, parked_at=THEN), Job(id=4, status="old"))
    with heard_events() as heard:

        async def slow(item: PipelineItem[Any]) -> Outcome:
            await heard.wait_for(events.ItemApplied, count=2)
            async with item.session() as session:
                await item.guard(session)
            return DONE

        run = await shadowed(database, work_of({1: DONE, 2: Delete()}), slow, wait=LONG)
    assert [(row.row_id, row.verdict) for row in run.rows] == [
        ("1", "same"),
        ("2", "differs"),
    ]
    assert "LeaseLost" in str(run.rows[1].reason)


async def test_nothing_is_written_where_nobody_works(database: TemporaryDatabase) -> None:
    """A look would change what it looks at; or a row on which nobody worked count as the same."""
    await filled(database, Job(id=1, attempts=2), Job(id=2), Job(id=3))
    written = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.split(maxsplit=1)[0].upper() not in {"SELECT", "PRAGMA", "BEGIN"}:
            written.append(statement)

    async def picture() -> list[Any]:
        async with database.engine.connect() as connection:
            return list((await connection.execute(select(Job.__table__))).all())

    before = await picture()
    event.listen(database.engine.sync_engine, "before_cursor_execute", listen)
    try:
        run = await shadowed(database, None, work_of({1: DONE, 2: DONE}), rows=2, wait=timedelta(0))
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", listen)
    assert (await picture(), written) == (before, [])
    assert run.text().splitlines() == [
        "JobPipeline, in the shadow of the live replicas: nothing was written",
        "2 not worked on in 0 s",
        "Job 1: not worked on",
        "Job 2: not worked on",
    ]
    assert (run.needs_person, run.compared) == (False, 0)


async def test_what_changed_meanwhile_does_not_count(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change by a service would pass for a difference between two versions."""
    await filled(database, *(Job(id=number) for number in (1, 2, 3)))
    looks = Looks(monkeypatch)

    async def disturbed(item: PipelineItem[Any]) -> Outcome:
        async with database.session_factory.begin() as session:
            await session.execute(update(Job).where(Job.id == 1).values(price=3))
        await looks.one_more()
        return DONE

    async def billing() -> None:
        async with hold_rows(database.session_factory, Job, [2], owner="billing"):
            await looks.one_more()

    live = work_of({1: disturbed, 2: DONE, 3: DONE})
    shadow = work_of(dict.fromkeys((1, 2, 3), Apply({"status": "other"})))
    run = await shadowed(database, live, shadow, before=billing, wait=LONG)
    assert [row.verdict for row in run.rows] == [
        "changed_meanwhile",
        "changed_meanwhile",
        "differs",
    ]
    assert run.rows[0].reason == "price"
    assert str(run.rows[1].reason).startswith("held by billing:")
    assert "Job 1: changed meanwhile: price" in run.text()


async def test_a_process_that_hangs_is_no_outcome(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that never ends would pass for one that fails, or for none that was compared."""
    monkeypatch.setattr(attempt_module, "REHEARSAL_TIMEOUT", timedelta(milliseconds=20))
    await filled(database, Job(id=1))

    async def hang(item: PipelineItem[Any]) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    run = await shadowed(database, None, hang, wait=timedelta(0))
    [row] = run.rows
    assert (row.verdict, row.reason) == ("unfinished", "process did not end within 60 s")
    assert (run.needs_person, run.compared) == (True, 0)


async def test_bad_input_is_refused(sqlite_database: TemporaryDatabase) -> None:
    """A typing error would run `process` for nothing; or a look create a disk in the cloud."""
    await filled(sqlite_database)
    pipeline = JobPipeline(work_of({}))
    insight = Insight(sqlite_database.session_factory, [pipeline])
    assert "no row of Job is due now" in (await insight.shadow(NAME)).text()
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rows": 0}, "1 to 100 rows"),
        ({"rows": 101}, "1 to 100 rows"),
        ({"rows": "all"}, "1 to 100 rows"),
        ({"wait": 60}, "a timedelta of 0 to 300 s"),
        ({"wait": "60"}, "not '60'"),
        ({"wait": timedelta(seconds=-1)}, "of 0 to 300 s, not -1 s"),
        ({"wait": timedelta(seconds=301)}, "of 0 to 300 s"),
        ({"ignore": ["nothing"]}, "no column 'nothing'"),
        ({"ignore": None}, "columns, or their names, not None"),
    )
    assert not (await insight.shadow(NAME, ignore=Job.price)).rows
    for how, match in refused:
        with pytest.raises(AppError, match=match):
            await insight.shadow(NAME, **how)
    with pytest.raises(AppError, match="no pipeline of this app"):
        await insight.shadow("Nothing")
    pipeline.ready = lambda: func.nothing(Job.id) == 1  # type: ignore[method-assign]
    with pytest.raises(AppError, match=r"cannot be read: .*nothing"):
        await insight.shadow(NAME)
    pipeline.rehearsable = False
    with pytest.raises(ConfigurationError, match="rehearsable = True"):
        await insight.shadow(NAME)


def test_a_reset_is_no_outcome_and_two_are_one_too_many() -> None:
    """A row that came back for a related lock would be compared as it was; or one that was worked
    on twice as if by one attempt.
    """
    leased = LeasedTable.of(Job)
    values = dict.fromkeys(leased.table.columns)
    values |= {leased.key: 1, leased.column("attempts"): 0}
    rules = WatchRules(leased, NAME, ())

    def look(seconds: float, **changes: Any) -> RowLook:
        stamped = changes | {"last_processed_at": THEN + timedelta(seconds=seconds)}
        changed = {leased.column(name): value for name, value in stamped.items()}
        return RowLook(THEN, {1: values | changed})

    row = rules.begin(SnapshotRow(1, values, Job(), 1, prev_lock_expired=False, place=0.0))
    row = rules.after_look(row, look(1, lock_owner=NAME))
    assert (row.is_finished, row.was_reset) == (False, True)
    token = leased.new_token(is_reserved=True)
    row = rules.after_look(row, look(2, lock_owner=NAME, lock_token=token))
    assert not row.is_finished
    once = rules.after_look(row, look(3, attempts=1))
    assert (live_kind(leased, once), was_worked_on_again(leased, once)) == ("retried", False)
    again = rules.after_look(row, look(3, attempts=2))
    assert was_worked_on_again(leased, again)
    assert rules.after_look(replace(once), look(4, attempts=0)) == once
    other = rules.after_look(row, look(3, lock_owner="BackupPipeline"))
    assert other.held_by == {"BackupPipeline"}
