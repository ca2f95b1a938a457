"""``rowlock timeline``: what it prints, and its exit codes."""

from __future__ import annotations

import json

import pytest

from rowlock.testing import TemporaryDatabase

from ..insight.test_timeline import drop_history
from .conftest import Command
from .test_steering import WHY, furnished

pytestmark = pytest.mark.either_database

APP = "--app=app:remembering"


async def test_a_timeline_is_printed(database: TemporaryDatabase, rowlock_on_both: Command) -> None:
    """A person at a terminal could not ask what happened; or a script not tell that nothing is
    known.
    """
    await furnished(database)
    await drop_history(database)
    ended = rowlock_on_both("timeline", "Volume", "17", APP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "? no table of the history" in ended.stdout
    assert rowlock_on_both("park", "Volume", "17", *WHY, "--app=app:pausable").returncode == 0
    ended = rowlock_on_both("timeline", "Volume", "18", APP, "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["schema"], document["row"]) == (
        4,
        "rowlock.timeline/1",
        None,
    )
    ended = rowlock_on_both("timeline", "Volume", "17", APP, "--limit", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "1 to 1,000" in ended.stderr
