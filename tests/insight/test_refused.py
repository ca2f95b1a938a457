"""What the database refuses costs that part of an explanation alone; and asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Connection, event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import ConfigurationError
from rowlock.insight import Explanation, Verdict
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.testing import TemporaryDatabase

from .shop import Scene, Volume, VolumePipeline, at, furnish, insight_of


class RaisingPipeline(VolumePipeline):
    """Cannot say which rows want work, once it is built."""

    is_built = False

    def ready(self) -> ColumnElement[bool]:
        if self.is_built:
            raise RuntimeError("no flag server")
        return super().ready()


class DividingPipeline(VolumePipeline):
    """Divides by zero, where that is an error."""

    def ready(self) -> ColumnElement[bool]:
        return Volume.attempts / (Volume.id - 17) > 1


class MissingPipeline(VolumePipeline):
    """Asks for a function that no database has."""

    def ready(self) -> ColumnElement[bool]:
        return (Volume.status == "submitted") & text("no_such_function(1) = 1").self_group()  # type: ignore[return-value]


def line_of(answer: Explanation, name: str) -> tuple[str, str]:
    """Return the answer of a line, and what is said beside it."""
    [line] = [line for line in answer.pipelines[0].lines if line.name == name]
    return line.answer, line.detail


async def test_a_part_that_the_database_refuses_costs_itself_alone(
    database: TemporaryDatabase,
) -> None:
    """A mistake in `ready` would leave a person without the lease, the error and the attempts."""
    await furnish(database, Scene({"attempts": 3, "last_error": "no disk"}))
    answer = await insight_of(database, pipelines=[MissingPipeline()]).explain(Volume, 17)
    [one] = answer.pipelines
    assert one.verdict is Verdict.READY_FAILS
    assert one.needs_person
    assert one.headline.startswith("READY FAILS in the database: ")
    assert "no_such_function" in one.headline
    assert line_of(answer, "attempts") == ("3", "of 20; never processed")
    assert line_of(answer, "lease") == ("free", "")
    assert line_of(answer, "ready")[0] == "?"


async def test_a_division_by_zero_is_said_in_the_words_of_the_database(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A person would read the names of a driver's classes, and the error behind them cut off."""
    await furnish(postgresql_database, Scene())
    insight = insight_of(postgresql_database, pipelines=[DividingPipeline()])
    answer = await insight.explain(Volume, 17)
    assert answer.pipelines[0].headline == "READY FAILS in the database: division by zero"


async def test_ready_that_raises_is_said(database: TemporaryDatabase) -> None:
    """A person would see an error of Python's in place of what keeps the row."""
    await furnish(database, Scene())
    pipeline = RaisingPipeline()
    pipeline.is_built = True
    answer = await insight_of(database, pipelines=[pipeline]).explain(Volume, 17)
    assert answer.pipelines[0].headline == (
        "READY FAILS in the database: RuntimeError: no flag server"
    )


@pytest.mark.parametrize("column", ["attempts", "last_error", "deadline_at", "parked_at"])
async def test_a_column_that_was_dropped_costs_itself_alone(
    database: TemporaryDatabase, column: str
) -> None:
    """A migration that was not run would leave a person without any answer."""
    await furnish(database, Scene({"lock_owner": "Old", "last_processed_at": at(0)}))
    async with database.engine.begin() as connection:
        await connection.execute(text(f"ALTER TABLE volumes DROP COLUMN {column}"))
    answer = await insight_of(database).explain(Volume, 17)
    assert line_of(answer, "owner")[0] == "Old"
    assert line_of(answer, "ready") == ("yes", "status = 'submitted'")
    if column == "parked_at":
        assert line_of(answer, "due")[0] == "?"
        parts = answer.pipelines[0].parts
        assert parts is not None
        assert parts["due"] is None
    if column == "attempts":
        assert line_of(answer, "attempts")[0] == "?"


@contextmanager
def statements(database: TemporaryDatabase) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(connection: Connection, cursor: object, statement: str, *more: object) -> None:
        sent.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    yield sent
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)


async def test_an_explanation_is_a_few_statements_that_read(database: TemporaryDatabase) -> None:
    """To look at a row would cost more than to work on it, or change it."""
    await furnish(database, Scene({"due_at": at(-3600)}))
    with statements(database) as sent:
        await insight_of(database, pipelines=[VolumePipeline()]).explain(Volume, 17)
    assert 1 <= len(sent) <= 8
    assert {statement.split()[0] for statement in sent} == {"SELECT"}
    assert not any("FOR " in statement for statement in sent)


async def test_asking_leaves_no_trace_in_the_row(postgresql_database: TemporaryDatabase) -> None:
    """The next claim would pass over a row that somebody looks at."""
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    mark = select(text("xmin::text"), text("xmax::text"), text("ctid::text")).select_from(Volume)

    async def trace() -> Any:
        async with postgresql_database.engine.connect() as connection:
            return (await connection.execute(mark)).all()

    before = await trace()
    await insight_of(postgresql_database).explain(Volume, 17)
    assert await trace() == before


async def test_the_database_lets_nothing_be_written(postgresql_database: TemporaryDatabase) -> None:
    """A function in the host's `ready` could write while somebody looks."""
    await furnish(postgresql_database, Scene())
    insight = insight_of(postgresql_database)

    async def write(connection: AsyncConnection) -> None:
        await connection.execute(text("DELETE FROM volumes"))

    with pytest.raises(Exception, match="read-only transaction"):
        await insight.read(VolumePipeline().leased, write)


async def test_a_statement_that_takes_too_long_is_ended(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A question would keep a connection for as long as its whole time allows."""
    await furnish(postgresql_database, Scene())

    async def sleep(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT pg_sleep(600)"))

    with pytest.raises(Exception, match="statement timeout"):
        await insight_of(postgresql_database).read(
            VolumePipeline().leased, sleep, statement_timeout=timedelta(milliseconds=50)
        )


async def test_a_row_in_an_open_transaction_names_it(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that every claim passes over would look as if nothing kept it."""
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    async with postgresql_database.engine.connect() as other, other.begin():
        pid = await other.scalar(text("SELECT pg_backend_pid()"))
        await other.execute(text("UPDATE volumes SET secret = 'x' WHERE id = 17"))
        answer = await insight_of(postgresql_database, pipelines=[VolumePipeline()]).explain(
            Volume, 17
        )
        [one] = answer.pipelines
        headlines = (one.headline, *one.also)
    assert any(
        headline.startswith(f"TOUCHED by an open transaction: pid {pid}, idle")
        for headline in headlines
    )
    assert one.needs_person


async def test_hidden_columns_are_not_shown(database: TemporaryDatabase) -> None:
    """A value that nobody is to see would stand in a terminal, and in a ticket behind it."""

    class Secretive(VolumePipeline):
        def ready(self) -> ColumnElement[bool]:
            return (Volume.status == "submitted") & (Volume.secret == "sesame")

    await furnish(database, Scene({"secret": "open"}))
    pipelines = [Secretive()]
    shown = await insight_of(database, pipelines=pipelines).explain(Volume, 17)
    assert shown.pipelines[0].headline == "NOT READY: secret = 'sesame' is false: secret is 'open'"
    hiding = insight_of(database, pipelines=pipelines, hide=[Volume.secret])
    text_ = (await hiding.explain(Volume, 17)).text(200)
    assert "sesame" not in text_
    assert "open" not in text_


async def test_control_characters_of_a_row_are_shown(database: TemporaryDatabase) -> None:
    """An error in a row could write over the terminal of the person who reads it."""
    error = "\x1b[2J\x9b1m\nforged\u202e" + "x" * 5000
    await furnish(database, Scene({"parked_at": at(0), "last_error": error, "attempts": 1}))
    answer = await insight_of(database).explain(Volume, 17)
    assert answer.pipelines[0].headline.endswith("…")
    assert r"\x1b[2J\x9b1m\x0aforged\u202e" in answer.text(200)
    assert not any(ord(character) < 32 for character in answer.text().replace("\n", ""))
    redacting = insight_of(database, redact=lambda text: f"{len(text)} characters")
    assert f"{len(error)} characters" in (await redacting.explain(Volume, 17)).text()


@pytest.mark.parametrize("redact", [int, lambda text: None], ids=["raises", "no text"])
async def test_a_redaction_that_fails_costs_that_error_alone(
    sqlite_database: TemporaryDatabase, redact: Any
) -> None:
    """A slip in the host's redaction would take every answer about rows that failed."""
    await furnish(sqlite_database, Scene({"parked_at": at(0), "last_error": "my secret"}))
    told = (await insight_of(sqlite_database, redact=redact).explain(Volume, 17)).text()
    assert "PARKED" in told
    assert "(an error that redact= has failed for)" in told
    assert "my secret" not in told


def test_every_database_has_its_side() -> None:
    """A database would have no questions."""
    sides = [INSIGHT.on(name) for name in ("sqlite", "postgresql")]
    assert len({type(side) for side in sides}) == len(sides)


@pytest.mark.parametrize("columns", [{"hide": ["nope"]}, {"show": {Volume: ["nope"]}}])
def test_columns_that_no_model_has_are_refused_at_once(
    sqlite_database: TemporaryDatabase, columns: dict[str, Any]
) -> None:
    """A secret whose name was mistyped would be found out at the first question, in production."""
    with pytest.raises(ConfigurationError, match="nope"):
        insight_of(sqlite_database, pipelines=[VolumePipeline()], **columns)
