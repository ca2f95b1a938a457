"""What happened to a row: the newest first, with its gaps, and nothing of a row that moves a
cursor.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import DDL, MetaData, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import AppError
from rowlock.insight import Insight, insight_tables
from rowlock.insight.recorder import stored_key
from rowlock.testing import TemporaryDatabase

from .shop import NOW, SCENES, Volume, furnish, insight_of
from .test_actions import BY
from .test_history import HISTORY, TABLES, make_tables

pytestmark = pytest.mark.either_database(
    but=["test_a_timeline", "test_a_row_that_was_deleted", "test_without_the_table"]
)

REPLICAS = TABLES.replicas
HOSTILE = "\x1b[2J\r\nINFO forged \u202e"
GOLDEN = """\
Volume 17 · what happened                                2026-11-22 03:14:05 UTC, by the database
TIME      KIND     PIPELINE        REPLICA   ATT   TOOK
03:14:05  action   ~               ~           ~      ~  park by alice: provider down
03:13:05  gap      ~               3fa2c1d0    ~      ~  812 entries are missing here, of any row
03:12:05  parked   VolumePipeline  web-7      20  1.2 s  ConnectionError: cloud-7 refused
03:11:05  applied  VolumePipeline  3fa2c1d0    1  0.9 s  set status, disk_id""".replace(
    "~", "\N{EN DASH}"
)


async def put(connection: AsyncConnection, minutes: float, **values: Any) -> None:
    row = {"model": "Volume", "row_id": "17", "pipeline": "VolumePipeline"} | values
    at = NOW - timedelta(minutes=minutes)
    await connection.execute(insert(HISTORY).values(row | {"at": at}))


async def furnished(database: TemporaryDatabase) -> Insight:
    """Make volume 17 and its history, and return the questions."""
    await furnish(database, SCENES["not_ready"])
    await make_tables(database)
    assert REPLICAS is not None
    async with database.engine.begin() as connection:
        done = {"kind": "applied", "columns": "status, disk_id", "attempt": 1, "took_s": 0.9}
        await put(connection, 3, replica="3fa2c1d0", **done)
        failed = {"kind": "parked", "attempt": 20, "took_s": 1.2}
        error = "ConnectionError: cloud-7 refused"
        await put(connection, 2, replica="91be04aa", error=error, **failed)
        gap = {"kind": "gap", "model": "", "row_id": "", "pipeline": "", "dropped": 812}
        await put(connection, 1, replica="3fa2c1d0", **gap)
        await put(connection, 1, kind="applied", row_id="18")
        replica = {"host": "web", "pid": 1, "version": "1", "report": {}, "draining": False}
        times = {"started_at": NOW, "seen_at": NOW}
        await connection.execute(
            insert(REPLICAS).values(mark="91be04aa", name="web-7", **replica, **times)
        )
    return insight_of(database, tables=TABLES)


async def test_a_timeline(database_with_clock: TemporaryDatabase) -> None:
    """Nobody could say in one look what happened to a row, or what is not known of it."""
    insight = await furnished(database_with_clock)
    await insight.park(Volume, 17, **BY)
    timeline = await insight.timeline("volumes", "17")
    assert timeline.text(97) == GOLDEN
    document = timeline.to_dict()
    assert document["schema"] == "rowlock.timeline/1"
    assert document["at"] == "2026-11-22T03:14:05Z"
    told = [entry["kind"] for entry in document["entries"]]
    assert told == ["action", "gap", "parked", "applied"]
    parked = document["entries"][2]
    assert (parked["replica"], parked["replica_name"]) == ("91be04aa", "web-7")
    assert document["entries"][3]["columns"] == ["status", "disk_id"]


async def test_a_timeline_is_bounded(database_with_clock: TemporaryDatabase) -> None:
    """The history of a row that is processed each second would be read as a whole."""
    insight = await furnished(database_with_clock)
    timeline = await insight.timeline(Volume, 17, limit=1)
    assert [entry.kind for entry in timeline.entries or ()] == ["gap", "parked"]
    assert timeline.is_cut
    assert timeline.text().endswith("older entries are not shown")
    for limit in (0, 1001):
        with pytest.raises(AppError, match="1 to 1,000"):
            await insight.timeline(Volume, 17, limit=limit)


async def test_a_pause_is_in_the_timeline(database_with_clock: TemporaryDatabase) -> None:
    """A row that nobody took for an hour would show no reason."""
    insight = await furnished(database_with_clock)
    await insight.pause("VolumePipeline", **BY)
    await insight.pause("FleetPipeline", **BY)
    timeline = await insight.timeline(Volume, 17)
    assert timeline.text().splitlines()[2].endswith("pause by alice: provider down")
    assert timeline.text().count("pause by") == 1


async def test_a_row_that_was_deleted(database_with_clock: TemporaryDatabase) -> None:
    """Of all rows, that which is gone could not be asked about."""
    insight = await furnished(database_with_clock)
    timeline = await insight.timeline(Volume, 18)
    assert timeline.text().splitlines()[1] == "the row is not there"
    assert timeline.is_known
    assert not (await insight.timeline(Volume, 19)).is_known


async def test_texts_of_rows_move_no_cursor(database_with_clock: TemporaryDatabase) -> None:
    """Whoever writes an error could clear the screen of whoever reads it."""
    insight = await furnished(database_with_clock)
    hostile = dict.fromkeys(("error", "kind", "pipeline", "actor", "reason", "action"), HOSTILE)
    async with database_with_clock.engine.begin() as connection:
        await put(connection, 0, **hostile | {"kind": "action"})
        await put(connection, 0, **hostile | {"kind": HOSTILE[:16], "columns": HOSTILE})
        await put(connection, 0, **hostile | {"kind": "retried", "replica": HOSTILE[:8]})
    text = (await insight.timeline(Volume, 17)).text()
    assert not set(text) & set("\x1b\r\u202e")
    assert len(text.splitlines()) == len(GOLDEN.splitlines()) - 1 + 3


async def test_errors_are_redacted(database_with_clock: TemporaryDatabase) -> None:
    """What a host hides in one answer would be in the next one."""
    await furnished(database_with_clock)
    insight = insight_of(database_with_clock, tables=TABLES, redact=lambda text: text[:15] + "***")
    text = (await insight.timeline(Volume, 17)).text()
    assert "ConnectionError***" in text
    assert "cloud-7" not in text


async def drop_history(database: TemporaryDatabase) -> None:
    """Be a database whose migration was not run, whatever other tests of the shop declare."""
    async with database.engine.begin() as connection:
        await connection.execute(DDL("DROP TABLE IF EXISTS rowlock_history"))


@pytest.mark.parametrize("lacking", ["of the host", "of the database"])
async def test_without_the_table(database_with_clock: TemporaryDatabase, lacking: str) -> None:
    """The window would fail where it could say what to add, and what the row itself knows."""
    await furnish(database_with_clock, SCENES["parked"])
    await drop_history(database_with_clock)
    tables = TABLES if lacking == "of the database" else insight_tables(MetaData(), history=False)
    timeline = await insight_of(database_with_clock, tables=tables).timeline(Volume, 17)
    assert timeline.entries is None
    assert timeline.to_dict()["entries"] is None
    assert timeline.text().splitlines()[1:] == [
        "? no table of the history: insight_tables(metadata, history=True), its migration, and an"
        " Observer in each replica",
        "last processed: 02:51:12",
        "last error: gave up after 20 attempts: ConnectionError: cloud-7 refused",
    ]
    assert stored_key("17") == "17"
