"""Commands by which a person acts: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from rowlock.cli.commands import lasts, user_at_host
from rowlock.insight import insight_tables
from rowlock.insight.migrations import PERSON_CHARS_MAX
from rowlock.rows.database_time import database_time_after
from rowlock.testing import TemporaryDatabase

from ..insight.shop import DEAD_TOKEN, TOKEN, Base, Volume
from ..pipelines.scenes import is_free
from .conftest import Command

pytestmark = pytest.mark.either_database

APP = "--app=app:pausable"
WHY = ("--reason", "provider down")


async def furnished(database: TemporaryDatabase, **values: Any) -> None:
    """Make the tables of the shop, those of pauses included, and volume 17."""
    insight_tables(Base.metadata, replicas=False)
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Volume(id=17, **values))


async def volume_17(database: TemporaryDatabase) -> Volume:
    async with database.session_factory() as session:
        return await session.get_one(Volume, 17)


async def leased(database: TemporaryDatabase, seconds: int) -> None:
    """Have a pipeline hold volume 17, until so many seconds from now."""
    ends = database_time_after(timedelta(seconds=seconds))
    async with database.engine.begin() as connection:
        values = {"lock_owner": "VolumePipeline", "lock_expires_at": ends}
        await connection.execute(update(Volume).values(lock_token=DEAD_TOKEN, **values))


async def test_a_row_is_parked_and_put_back(
    database: TemporaryDatabase, rowlock_on_both: Command
) -> None:
    """The command that an explanation names would do something else, or nothing."""
    await furnished(database)
    ended = rowlock_on_both("park", "Volume", "17", *WHY, "--by", "alice", APP)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Volume 17 parked\n", "")
    there = await volume_17(database)
    assert there.last_error == "parked by alice: provider down"
    ended = rowlock_on_both("unpark", "volumes", "17", *WHY, APP, "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["schema"]) == (0, "rowlock.action/1")
    assert (document["action"], document["outcome"], document["row_id"]) == (
        "unpark",
        "put back, due now",
        "17",
    )
    assert document["by"] == user_at_host()
    assert (await volume_17(database)).parked_at is None
    assert rowlock_on_both("due", "Volume", "17", *WHY, APP).stdout == "Volume 17 due now\n"


async def test_a_live_lease_is_released_by_force_alone(
    database: TemporaryDatabase, rowlock_on_both: Command
) -> None:
    """`release --force` breaks the lease that was shown, not that of whoever holds the row now."""
    await furnished(database)
    await leased(database, 3600)
    ended = rowlock_on_both("release", "Volume", "17", *WHY, APP)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert f"VolumePipeline holds Volume 17 by the lease {DEAD_TOKEN}" in ended.stderr
    force = ("release", "Volume", "17", *WHY, APP, "--force")
    ended = rowlock_on_both(*force)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--seen TOKEN" in ended.stderr
    ended = rowlock_on_both(*force, "--seen", str(TOKEN), "--json")
    assert (ended.returncode, json.loads(ended.stdout)["error"]) == (4, "lease-changed")
    assert not is_free(await volume_17(database))
    ended = rowlock_on_both(*force, "--seen", str(DEAD_TOKEN))
    assert (ended.returncode, ended.stdout) == (0, "Volume 17 released\n")
    assert is_free(await volume_17(database))


@pytest.mark.parametrize("command", ["release", "park", "unpark", "due"])
async def test_a_row_that_is_not_there(
    sqlite_database: TemporaryDatabase, rowlock: Command, command: str
) -> None:
    """A typing error would look as if it had helped."""
    await furnished(sqlite_database)
    ended = rowlock(command, "Volume", "18", *WHY, APP, "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["exit_code"], document["error"]) == (4, 4, "row-not-found")


async def test_a_pipeline_is_paused_and_resumed(
    database: TemporaryDatabase, rowlock_on_both: Command
) -> None:
    """Somebody would have to write SQL to stop a pipeline."""
    await furnished(database)
    ended = rowlock_on_both("pause", "VolumePipeline", *WHY, APP)
    assert (ended.returncode, ended.stdout) == (0, "VolumePipeline paused\n"), ended.stderr
    again = ("pause", "VolumePipeline", *WHY, APP, "--for", "2h", "--json")
    ended = rowlock_on_both(*again)
    assert (ended.returncode, json.loads(ended.stdout)["error"]) == (4, "already-paused")
    document = json.loads(rowlock_on_both(*again, "--replace").stdout)
    assert document["until"].endswith("Z")
    assert document["ended"]["reason"] == WHY[1]
    assert rowlock_on_both("resume", "VolumePipeline", *WHY, APP).stdout.startswith(
        f"VolumePipeline resumed; this ends the pause by {user_at_host()} since "
    )
    ended = rowlock_on_both("resume", "VolumePipeline", *WHY, APP)
    assert (ended.returncode, ended.stdout) == (0, "VolumePipeline was not paused\n")


async def test_a_host_that_cannot_pause_hears_what_to_add(
    sqlite_database: TemporaryDatabase, rowlock: Command
) -> None:
    """A person would believe that the pipeline is paused."""
    await furnished(sqlite_database)
    ended = rowlock("pause", "VolumePipeline", *WHY, "--app", "app:manager")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "insight_tables(Base.metadata)" in ended.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("park", "Volume", "17"), "--reason"),
        (("park", "Volume", "17", "--reason", " "), "a reason has 1 to 200 characters"),
        (("park", "Volume", "17", "--reason", "x" * 201), "a reason has 1 to 200 characters"),
        (("park", "Volume", "17", *WHY, "--by", ""), "a name has 1 to 100 characters"),
        (("pause", "VolumePipeline", *WHY, "--for", "soon"), "is no duration"),
        (("pause", "VolumePipelin", *WHY), "VolumePipeline may be meant"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    rowlock: Command, words: tuple[str, ...], told: str
) -> None:
    """A person would read an error of the database, or nothing."""
    ended = rowlock(*words, APP)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: int) -> None:
    """Two hours would be two minutes."""
    assert lasts(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["0s", "2", "h", "-1h", "367d", "1h30m", "9999999d"])
def test_what_is_no_duration(text: str) -> None:
    """A pause would end at once, or in a thousand years."""
    with pytest.raises(argparse.ArgumentTypeError, match="is no duration"):
        lasts(text)


def test_who_sits_there_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose user has no name, nobody could act; or no column would hold it."""
    monkeypatch.setattr("getpass.getuser", _raise)
    assert user_at_host().startswith("unknown@")
    monkeypatch.setattr("socket.gethostname", lambda: "x" * 300)
    assert len(user_at_host()) == PERSON_CHARS_MAX


def _raise() -> str:
    raise KeyError("getpwuid(): uid not found: 1000")
