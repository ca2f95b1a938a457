"""Commands where one of two databases is away: what there is is printed, and the exit code says
that a person is needed; 3 is kept for no answer at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.cli.answering import NEEDS_PERSON, NO_DATABASE, WELL
from rowlock.insight import Observer, insight_tables

from ..insight.shop import Base, FleetPipeline, Volume, VolumePipeline
from .test_no_database import printed

TABLES: Final = insight_tables(Base.metadata)
APP: Final = ("--app", "tests.cli.test_half_an_answer:shop")
URLS: Final[dict[str, str]] = {}
AWAY: Final = "sqlite orders.db"


def shop() -> Observer:
    return Observer(
        *(
            PipelineManager(async_sessionmaker(create_async_engine(URLS[name])), [pipeline])
            for name, pipeline in (("away", FleetPipeline()), ("shop", VolumePipeline()))
        ),
        tables=TABLES,
    )


@pytest.fixture(autouse=True)
def databases(tmp_path: Path) -> Iterator[None]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Volume).values(id=17, status="submitted"))
    engine.dispose()
    URLS["shop"] = f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    URLS["away"] = f"sqlite+aiosqlite:///{tmp_path}/nowhere/orders.db"
    yield
    URLS.clear()


@pytest.mark.parametrize(
    ("words", "code", "names_it"),
    [
        (("status",), NEEDS_PERSON, True),
        (("check",), NEEDS_PERSON, True),
        (("check", "--migration"), NEEDS_PERSON, True),
        (("replicas",), NEEDS_PERSON, True),
        (("explain", "--pipeline", "VolumePipeline"), NEEDS_PERSON, True),
        (("rows", "VolumePipeline"), WELL, False),
        (("timeline", "Volume", "17"), WELL, False),
    ],
)
def test_what_there_is_is_printed(words: tuple[str, ...], code: int, *, names_it: bool) -> None:
    """A script would throw away the answer of the database that works, or take half of an answer
    for all that there is.
    """
    ended, out, error = printed(*words, *APP)
    assert (ended, error) == (code, "")
    assert (AWAY in " ".join(out.split())) is names_it
    ended, out, error = printed(*words, *APP, "--json")
    assert (ended, error) == (code, "")
    told: dict[str, Any] = json.loads(out)
    if words[0] in {"status", "replicas"}:
        assert [one["database"] for one in told["away"]] == [AWAY]
    elif words[0] == "check":
        assert AWAY in {one["about"] for one in told["findings"]}


def test_what_is_asked_of_the_one_that_is_away_has_no_answer() -> None:
    """A row would seem to be gone, or well, whose database nobody could ask."""
    for words in (("explain", "Fleet", "3"), ("rows", "FleetPipeline")):
        ended, out, error = printed(*words, *APP)
        assert (ended, out) == (NO_DATABASE, "")
        assert error.startswith("rowlock: no database: ")
