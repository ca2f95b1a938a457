"""``rowlock plan``: what it prints, and its exit codes."""

from __future__ import annotations

import argparse
import json

import pytest

from rowlock.cli.answering import NO_SUCH_ROW, failed
from rowlock.errors import LockWaitTimeout
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Volume
from .conftest import Command
from .test_steering import furnished

pytestmark = pytest.mark.either_database

APP = "--app=app:planned"


async def test_a_plan_is_printed(database: TemporaryDatabase, rowlock_on_both: Command) -> None:
    """A person would have to let a pipeline loose to see what it does; or a script not hear that
    it fails.
    """
    await furnished(database)
    async with database.session_factory.begin() as session:
        session.add(Volume(id=18))
    ended = rowlock_on_both("plan", "PlannedPipeline", "17", APP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "status: 'submitted' \N{RIGHTWARDS ARROW} 'active'" in ended.stdout
    ended = rowlock_on_both("plan", "PlannedPipeline", "18", APP, "--json")
    [row] = json.loads(ended.stdout)["rows"]
    assert (ended.returncode, row["outcome"], row["reason"]) == (1, "Retry", "ValueError: no disk")
    assert rowlock_on_both("plan", "PlannedPipeline", "19", APP).returncode == 4
    ended = rowlock_on_both("plan", "FleetPipeline", "3", APP)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "rehearsable = True" in ended.stderr


def test_a_row_that_is_held_is_no_outage(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever plans a row that a replica works on would look for a database that is away."""
    held = LockWaitTimeout(namespace="Volume", keys=(17,), timeout_s=5, holder="VolumePipeline")
    options = argparse.Namespace(traceback=False, json=False)
    assert failed(options, held) == NO_SUCH_ROW
    assert capsys.readouterr().err.startswith("rowlock: 1 key(s) of 'Volume' were not free")
