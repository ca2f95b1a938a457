"""What replicas say of rows that they have, and when a worker will have one."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from typing import Any

import pytest
from sqlalchemy import ColumnElement, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ModelError
from rowlock.__main__ import command_parser
from rowlock.errors import AppError
from rowlock.insight import Insight, Verdict, insight_tables
from rowlock.insight.explanation import PipelineExplanation
from rowlock.insight.shown import row_command
from rowlock.insight.verdicts import Refused
from rowlock.testing import TemporaryDatabase

from ..shopwindow.test_verdicts_page import ROW, columns, row
from .shop import (
    TOKEN,
    Base,
    Fleet,
    FleetPipeline,
    Quiet,
    Scene,
    Volume,
    VolumePipeline,
    at,
    furnish,
)
from .test_status import HEALTHY, filled, replica

pytestmark = pytest.mark.either_database(but=["test_keys_of_other_types_are_read_from_text"])

TABLES = insight_tables(Base.metadata)
BUSY = HEALTHY | {"claimed_s": 2.0, "queued": 12, "running": 3, "workers": 4}
ITEM = {
    "pipeline": "VolumePipeline",
    "row_id": "100",
    "state": "running",
    "place": None,
    "since_s": 10.0,
    "attempt": 3,
    "token": "00000000",
}


def web(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the row of the replica that has made the token of volume 100."""
    report = {"pipelines": {"VolumePipeline": BUSY | changes}, "items": list(items)}
    return replica(str(TOKEN)[-8:], "web-7", report=report)


async def headline(insight: Insight, key: int) -> str:
    [one] = (await insight.explain(Volume, key)).pipelines
    return one.headline


@pytest.mark.parametrize(
    ("item", "changes", "told"),
    [
        ({}, {}, "RUNNING on web-7 for 12 s, attempt 3"),
        ({"state": "settling"}, {}, "RUNNING on web-7 for 12 s, attempt 3"),
        (
            {"state": "queued", "place": 3},
            {"settled_s": 2.0},
            "QUEUED on web-7: 4th of 12, about 2 s",
        ),
        (
            {"state": "queued", "place": 3},
            {"settled_s": 0.0, "p50_s": 8.0},
            "QUEUED on web-7: 4th of 12, about 8 s",
        ),
        (
            {"state": "queued", "place": 3},
            {"settled_s": 0.0, "p50_s": None},
            "QUEUED on web-7: 4th of 12",
        ),
        ({"token": "11111111"}, {}, "LEASED by web-7, ends in 9 s unless renewed"),
        ({"row_id": "17"}, {}, "LEASED by web-7, ends in 9 s unless renewed"),
        ({"attempt": "x"}, {}, "LEASED by web-7, ends in 9 s unless renewed"),
    ],
)
async def test_a_row_in_progress_is_told_by_its_replica(
    sqlite_database_with_clock: TemporaryDatabase,
    item: dict[str, Any],
    changes: dict[str, Any],
    told: str,
) -> None:
    """A person could not tell a row at work from one in a queue, or would read of an earlier
    lease of it.
    """
    insight = await filled(sqlite_database_with_clock, web(ITEM | item, **changes))
    assert await headline(insight, 100) == told


async def test_a_row_in_line_says_when_it_starts_and_who_is_busy(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A person could not tell a line that moves from one that stands still."""
    insight = await filled(sqlite_database_with_clock, web())
    [one] = (await insight.explain(Volume, 101)).pipelines
    assert one.verdict is Verdict.LEFT_BY_DEAD
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.headline == "IN LINE: 1st, in a moment"
    assert one.why == ("Nothing keeps it: no row is before it, and 3 of 4 workers have a row.")


async def test_a_row_in_line_may_be_one_that_its_replicas_cannot_read(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A person would wait for a row that each replica leaves to the others."""
    insight = await filled(sqlite_database_with_clock, web(totals={"unreadable": 3}))
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.verdict is Verdict.IN_LINE
    assert " could not read rows 3 times" in one.why


async def test_status_tells_each_trouble(sqlite_database_with_clock: TemporaryDatabase) -> None:
    """Claims that fail everywhere, or rows that wait beside idle workers, would look like any
    other day.
    """
    insight = await filled(sqlite_database_with_clock, web())
    status = await insight.status()
    assert status.needs_person
    assert status.text().split("\n")[-1] == (
        "! VolumePipeline: due for 2 min, though 1 of 4 workers have nothing to do:"
        " rowlock explain Volume 17"
    )
    failing = web(fetch_failures=3, last_error="TransactionTimeout: no \x1banswer")
    async with sqlite_database_with_clock.engine.begin() as connection:
        assert TABLES.replicas is not None
        await connection.execute(TABLES.replicas.delete())
        await connection.execute(insert(TABLES.replicas).values(failing))
    assert (await insight.status()).text().split("\n")[-1] == (
        r"! VolumePipeline: claims fail on 1 of 1 replicas: TransactionTimeout: no \x1banswer:"
        " mend what the error says"
    )


async def test_a_row_of_unknown_age_may_be_overdue(database: TemporaryDatabase) -> None:
    """A row that was never processed, of a model without due times, would be in line for ever,
    whoever runs the pipeline.
    """
    await furnish(database, Scene(fleets=({"id": 3}, {"id": 4, "last_processed_at": at(0)})))
    insight = Insight(database.session_factory, [FleetPipeline(), VolumePipeline()])
    [one] = (await insight.explain(Fleet, 3)).pipelines
    assert one.headline == "NOBODY SEEMS TO RUN FleetPipeline"
    assert one.needs_person


async def test_what_a_main_row_lacks_is_named(database_with_clock: TemporaryDatabase) -> None:
    """A person would see that a row rests again and again, and not for whom."""
    fleet = {"id": 3, "lock_owner": "FleetPipeline", "last_processed_at": at(-0.5)}
    held = {"lock_owner": "billing:7c1f02aa", "lock_token": TOKEN, "lock_expires_at": at(9)}
    await furnish(database_with_clock, Scene(held | {"fleet_id": 3}, fleets=(fleet,)))
    insight = Insight(database_with_clock.session_factory, [FleetPipeline(), VolumePipeline()])
    [one] = (await insight.explain(Fleet, 3)).pipelines
    assert one.headline.endswith("stepped back for Volume 17, which billing:7c1f02aa has")


@pytest.mark.parametrize(
    "key", ["17", "a b", "it's", "-x", "$(id)", "a\nb", "\x1b[2J", "a\\b\n", "\u202eevil", 'q"q']
)
def test_a_command_names_the_row_whatever_its_key_is(key: str) -> None:
    """A person would copy a command that names another row, runs a part of the key, or writes to
    the terminal.
    """
    command = row_command("explain", "Volume", key)
    assert all(character.isprintable() for character in command)
    listed = ["bash", "-c", f"for word in {command}; do printf '%s\\0' \"$word\"; done"]
    told = subprocess.run(listed, capture_output=True, check=True, timeout=60).stdout
    words = [word for word in told.decode().split("\0")[:-1] if word != "--"]
    assert words == ["rowlock", "explain", "Volume", key]


def test_a_command_stands_in_one_line() -> None:
    """A narrow terminal would break a command in the middle of a key, or take one of two spaces."""
    facts = row(key="two  spaces and a very long key", due=False, columns=columns(parked_at=at(-5)))
    lines = PipelineExplanation.of(facts).text_lines(40)
    [command] = [line.strip() for line in lines if "rowlock unpark" in line]
    assert shlex.split(command)[:4] == ["rowlock", "unpark", "Volume", facts.key]


def test_what_nobody_may_see_is_said() -> None:
    """A row that an open transaction keeps would seem to be kept by nothing."""
    told = PipelineExplanation.of(row(touched=Refused("no right"), place=0))
    assert told.why.endswith("Whether an open transaction has locked it is not known: no right.")
    assert "not known" not in PipelineExplanation.of(ROW).why


def test_only_what_has_a_due_time_is_made_due() -> None:
    """A person would copy a command that is refused."""
    resting = row(due=False, columns={"last_processed_at": at(-6)})
    assert PipelineExplanation.of(resting).do == "wait"


def test_a_key_that_looks_like_an_option_is_read() -> None:
    """A person would be told of wrong usage by the command that an explanation names."""
    for verb, options in (("explain", ()), ("unpark", ('--reason "why"',))):
        words = shlex.split(row_command(verb, "Volume", "-x", *options))[1:]
        assert command_parser(words).parse_args(words).id == "-x"


class KeyBase(DeclarativeBase):
    """Models with keys of other types."""


class Named(LockColumns, KeyBase):
    """A row that has a text for its key."""

    __tablename__ = "named"
    id: Mapped[str] = mapped_column(primary_key=True)


class Numbered(LockColumns, KeyBase):
    """A row that has a UUID for its key."""

    __tablename__ = "numbered"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)


class NamedPipeline(Quiet):
    model = Named

    def ready(self) -> ColumnElement[bool]:
        return Named.id.is_not(None)


class NumberedPipeline(Quiet):
    model = Numbered

    def ready(self) -> ColumnElement[bool]:
        return Numbered.id.is_not(None)


async def test_keys_of_other_types_are_read_from_text(database: TemporaryDatabase) -> None:
    """A person could explain rows with whole numbers for keys alone."""
    await database.create_tables(KeyBase.metadata)
    key = uuid.UUID("00000000-0000-4000-8000-00003fa2c1d0")
    async with database.session_factory.begin() as session:
        session.add_all([Named(id="it's\na key"), Numbered(id=key)])
    insight = Insight(database.session_factory, [NamedPipeline(), NumberedPipeline()])
    for model, text in ((Named, "it's\na key"), (Numbered, str(key)), (Numbered, key.hex)):
        answer = await insight.explain(model, text)
        assert answer.is_there
        assert answer.pipelines[0].verdict is Verdict.NOBODY_RUNS
    with pytest.raises(AppError, match="x is no key of Numbered: its id is a UUID"):
        await insight.explain(Numbered, "x")


def test_a_key_of_several_columns_is_refused() -> None:
    """A person would get an answer about another row."""

    class Both(LockColumns, KeyBase):
        __tablename__ = "both"
        one: Mapped[int] = mapped_column(primary_key=True)
        two: Mapped[int] = mapped_column(primary_key=True)

    class BothPipeline(Quiet):
        model = Both

    with pytest.raises(ModelError, match="primary key"):
        BothPipeline()
