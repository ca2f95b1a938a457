"""``rowlock plan``: what it prints, and its exit codes."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime

import pytest

from rowlock.cli.answering import NO_SUCH_ROW, failed
from rowlock.cli.asking.plan import _code_of_shadow
from rowlock.errors import LockWaitTimeout
from rowlock.insight.shadowing.shadow_run import ShadowRow, ShadowRun, ShadowVerdict
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Volume
from .conftest import Command
from .test_steering import furnished

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


async def test_a_shadow_run_is_printed(
    database: TemporaryDatabase, rowlock_on_both: Command
) -> None:
    """A deploy would be let through by a run that has compared nothing, or by a typing error."""
    await furnished(database)
    shadow = ("plan", "PlannedPipeline", "--shadow", "5", "--wait", "0", APP)
    ended = rowlock_on_both(*shadow)
    assert (ended.returncode, ended.stderr) == (4, "")
    assert ended.stdout.splitlines()[1] == "1 not worked on in 0 s"
    document = json.loads(rowlock_on_both(*shadow, "--json").stdout)
    assert (document["compared"], document["rows"][0]["verdict"]) == (0, "not_worked_on")
    for words, text in (
        (("17", "--shadow", "5"), "name none"),
        (("17", "--wait", "5"), "belong to --shadow"),
        (("--shadow", "0"), "1 to 100 rows"),
        (("--shadow", "5", "--ignore", "nothing"), "no column 'nothing'"),
        (("--shadow", "5", "--wait", "nan"), "not a number of seconds"),
        (("--shadow", "5", "--wait", "soon"), "not a number of seconds"),
        (("--shadow", "5", "--wait", "1e300"), "not a number of seconds"),
        ((), "1 to 100 rows"),
    ):
        ended = rowlock_on_both("plan", "PlannedPipeline", *words, APP)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert text in ended.stderr


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([ShadowVerdict.SAME, ShadowVerdict.NOT_WORKED_ON], 0),
        ([ShadowVerdict.SAME, ShadowVerdict.DIFFERS], 1),
        ([ShadowVerdict.SAME, ShadowVerdict.UNFINISHED], 1),
        ([ShadowVerdict.CHANGED, ShadowVerdict.NOT_COMPARED], 4),
        ([], 4),
    ],
)
def test_the_exit_code_says_what_was_compared(verdicts: list[ShadowVerdict], code: int) -> None:
    """A script would deploy a version that decides otherwise."""
    rows = tuple(ShadowRow("17", verdict) for verdict in verdicts)
    run = ShadowRun("P", "Volume", datetime(2026, 11, 22, tzinfo=UTC), 60.0, rows)
    assert _code_of_shadow(run) == code
