"""``rowlock check`` and ``rowlock explain --pipeline``: what they print, and their exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import validate

from rowlock.__main__ import command_parser
from rowlock.cli.commands import check_words
from rowlock.errors import AppError
from rowlock.insight.schemas import schema_of
from rowlock.testing import TemporaryDatabase

from ..insight.checking import DEFECTS, be_well, spoil
from .conftest import Command

pytestmark = pytest.mark.either_database

HOST = """\
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from rowlock.insight import Insight
from tests.insight.checking import PIPELINES, TABLES

sessions = async_sessionmaker(create_async_engine({url!r}))
insight = Insight(sessions, [pipeline() for pipeline in PIPELINES], tables=TABLES)
"""
APP = "--app=host:insight"
TOLD = """\
volumes   BAD    no index serves the claim of VolumePipeline: add ix_volumes_due_at ON volumes
                 (due_at, id) WHERE status = 'submitted' AND parked_at IS NULL
fleets    BAD    index ix_expiry contains lock ends: every heartbeat writes every index (0 %
                 heap-only); drop it
"""
OF_PIPELINE = """\
NO INDEX SERVES VolumePipeline: every claim reads the whole table

  due       0
  leased    0
  ended     0
  parked    0
  runs on   0
  index     none serves the claim

do    add ix_volumes_due_at ON volumes (due_at, id) WHERE status = 'submitted' AND parked_at IS\
 NULL
"""


@pytest.fixture
def write_host(tmp_path: Path) -> Callable[[TemporaryDatabase], None]:
    """Write the app of the host into the folder of the command."""

    def write(database: TemporaryDatabase) -> None:
        url = database.url.render_as_string(hide_password=False)
        (tmp_path / "host.py").write_text(HOST.format(url=url), encoding="utf-8")

    return write


async def test_a_check_in_the_terminal(
    database: TemporaryDatabase,
    rowlock_on_both: Command,
    write_host: Callable[[TemporaryDatabase], None],
) -> None:
    """A build would not fail for a claim without an index, or fail for a database that is well."""
    write_host(database)
    await be_well(database)
    ended = rowlock_on_both("check", APP)
    well = "all is well: 3 pipelines looked at\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, well, "")
    for name in ("no index", "lock column in an index"):
        await spoil(database, DEFECTS[name].sql)
    ended = rowlock_on_both("check", APP)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, TOLD, "")
    document = json.loads(rowlock_on_both("check", "--json", APP).stdout)
    validate(document, schema_of("rowlock.check/2"))
    assert document["counts"] == {"BAD": 2, "warn": 0, "note": 0}
    assert document["findings"][1] == {
        "about": "fleets",
        "level": "BAD",
        "what": "index ix_expiry contains lock ends: every heartbeat writes every index (0 %"
        " heap-only)",
        "remedy": "drop it",
    }


async def test_a_pipeline_as_a_whole(
    sqlite_database: TemporaryDatabase,
    rowlock: Command,
    write_host: Callable[[TemporaryDatabase], None],
) -> None:
    """A person would have to look for a row before learning that no index serves any."""
    write_host(sqlite_database)
    await be_well(sqlite_database)
    ended = rowlock("explain", "--pipeline", "VolumePipeline", APP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1] == "NOTHING KEEPS IT: 0 due"
    await spoil(sqlite_database, DEFECTS["no index"].sql)
    ended = rowlock("explain", "--pipeline", "VolumePipeline", APP)
    assert (ended.returncode, ended.stdout.partition("\n")[2]) == (1, OF_PIPELINE)
    ended = rowlock("explain", "--pipeline", "VolumePipeline", "--plan", APP)
    assert "\n  SCAN volumes\n" in ended.stdout
    ended = rowlock("explain", "--pipeline", "VolumePipeline", "--json", APP)
    document = json.loads(ended.stdout)
    assert document["schema"] == "rowlock.pipeline/1"
    assert document["claim_plan"]["schema"] == "rowlock.claim_plan/1"
    assert document["claim_plan"]["served_by"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "explain what? explain MODEL ID, or explain --pipeline NAME"),
        (("Volume",), "explain what?"),
        (("Volume", "17", "--plan"), "explain what?"),
        (("Volume", "17", "--pipeline", "VolumePipeline"), "name a row or a pipeline"),
    ],
)
def test_words_that_do_not_go_together(words: tuple[str, ...], told: str) -> None:
    """A person would get the answer to another question."""
    options = command_parser(["explain"]).parse_args(["explain", *words])
    with pytest.raises(AppError, match=re.escape(told)):
        check_words(options)
