"""Eight stories of three in the morning: real processes, one command."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text

from rowlock import LeaseLost, hold_rows
from rowlock.insight.questions import LARGE_ROWS
from rowlock.testing import TemporaryDatabase

from ...insight.shop import Fleet, Volume
from .pages import page_says, renew_picture
from .scene import Shop, normalised, shop

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "at-3-am.md"


MANY: Final = """
WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < {})
INSERT INTO volumes (id, status, due_at, attempts)
SELECT i, 'active', '2020-01-01 00:00:00.000', 0 FROM n
"""


async def explains(scene: Shop, story: str, config: pytest.Config, *, code: int = 1) -> str:
    """Ask why volume 17 waits, compare with the docs and with the dashboard, and return what to
    do.
    """
    renew = bool(config.getoption("--renew-pages"))
    found, printed = await scene.rowlock("explain", "Volume", "17")
    await page_says(scene, story, printed)
    compare(story, normalised(printed), renew=renew)
    if renew:
        await renew_picture(scene, story, normalised(printed))
    assert found == code, printed
    # A long command stands on a line of its own.
    [to_do] = re.findall(r"^do    (.*(?:(?<=:)\n {6}.*)?)$", printed, re.MULTILINE)
    return str(to_do)


def compare(story: str, printed: str, *, renew: bool) -> None:
    """Compare what a command has printed with the first text of a section of the page."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(rf"(\{{ #{story} \}}.*?```text\n)(.*?)(```)", re.DOTALL)
    assert block.search(page), f"{PAGE.name} has no story {story}"
    if renew:
        page = block.sub(lambda found: found[1] + printed + found[3], page, count=1)
        PAGE.write_text(page, encoding="utf-8")
    told = block.search(page)
    assert told is not None
    assert told[2] == printed


async def does(scene: Shop, to_do: str) -> None:
    command = to_do[to_do.index("rowlock ") :].replace('"..."', '"it is mended"')
    code, printed = await scene.rowlock(*shlex.split(command)[1:])
    assert code == 0, printed


async def test_poison(sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config) -> None:
    """A row that fails each time would look like one that nobody has come to yet."""
    async with shop(sqlite_database) as scene:
        await scene.add(Volume(id=17, cloud="cloud-7"))
        replica = await scene.start("web-7", "VolumePipeline")
        await scene.hears(replica, "parked 17")
        await scene.write(17, parked_at=-10_900, last_processed_at=-10_900)
        to_do = await explains(scene, "poison", pytestconfig)
        await scene.write(17, cloud="cloud-1")
        await does(scene, to_do)
        await scene.hears(replica, "applied 17")


async def test_a_dead_replica(
    sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config
) -> None:
    """What a killed replica had would look as if somebody still worked on it."""
    async with shop(sqlite_database) as scene:
        await scene.add(Volume(id=17, cloud="cloud-9"))
        replica = await scene.start("web-7", "VolumePipeline")
        await scene.hears(replica, "working 17")
        await scene.kill(replica)
        await scene.silence("web-7")
        # One that has looked, and rests for long: the row is left to be seen.
        await scene.hears(await scene.start("web-8!", "VolumePipeline"), "fetched")
        await scene.write(17, lock_expires_at=-4, due_at=-40)
        to_do = await explains(scene, "dead-replica", pytestconfig, code=0)
        assert to_do.startswith("nothing")
        await scene.write(17, cloud="cloud-1")
        await scene.hears(await scene.start("web-9", "VolumePipeline"), "applied 17")


async def test_nobody_registered(
    sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config
) -> None:
    """Rows would wait for a pipeline that a deployment has lost."""
    async with shop(sqlite_database) as scene:
        await scene.add(Volume(id=17))
        await scene.write(17, due_at=-14_500)
        await scene.start("web-7", "FleetPipeline")
        code, printed = await scene.rowlock("status")
        assert code == 1
        renew = bool(pytestconfig.getoption("--renew-pages"))
        compare("status", normalised(printed), renew=renew)
        to_do = await explains(scene, "not-registered", pytestconfig)
        assert "register VolumePipeline()" in to_do
        replica = await scene.start("web-8", "FleetPipeline", "VolumePipeline")
        await scene.hears(replica, "applied 17")


async def test_no_index(sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config) -> None:
    """Claims would become slow with the table, and each row look like one that is in line."""
    async with shop(sqlite_database) as scene:
        replica = await scene.start("web-7!", "VolumePipeline")
        await scene.hears(replica, "fetched")
        await scene.add(Volume(id=17))
        await scene.write(17, due_at=-4)
        async with scene.database.engine.begin() as connection:
            await connection.execute(text(MANY.format(LARGE_ROWS + 1000)))
        await explains(scene, "no-index", pytestconfig, code=0)
        code, printed = await scene.rowlock("check", "--json")
        assert code == 1
        remedies = (one["remedy"] for one in json.loads(printed)["findings"])
        [wanted] = (found[0] for one in remedies if (found := re.search(r"ON volumes .*", one)))
        statement = f"CREATE INDEX ix_due {wanted}"
        async with scene.database.engine.begin() as connection:
            await connection.execute(text(statement))
        assert "no index" not in (await scene.rowlock("explain", "Volume", "17"))[1]


async def test_an_awaited_child(
    sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config
) -> None:
    """A row that is kept for another one would look forgotten."""
    async with shop(sqlite_database) as scene:
        await scene.add(Fleet(id=3))
        # Its own pipeline looks once, and must not find it then.
        await scene.add(*(Volume(id=key, fleet_id=3, status="active") for key in (17, 18)))
        sessions = scene.database.session_factory
        async with hold_rows(sessions, Volume, [18], timeout=5, owner="billing"):
            # It comes back in a minute, so the row is left to be seen.
            replica = await scene.start("web-7!", "FleetPipeline", "VolumePipeline")
            await scene.hears(replica, "reset 3")
            await scene.write(17, due_at=-4, status="submitted")
            to_do = await explains(scene, "awaited-child", pytestconfig, code=0)
            code, printed = await scene.rowlock(*shlex.split(to_do)[1:])
            assert code == 0, printed
            assert "stepped back for Volume 18, which billing:" in " ".join(printed.split())
        replica = await scene.start("web-8", "FleetPipeline", "VolumePipeline")
        await scene.hears(replica, "applied 3")


async def test_paused(sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config) -> None:
    """A pause that somebody has forgotten would look like an outage."""
    async with shop(sqlite_database) as scene:
        replica = await scene.start("web-7", "VolumePipeline")
        why = ("--reason", "provider down", "--by", "alice")
        assert (await scene.rowlock("pause", "VolumePipeline", *why))[0] == 0
        await scene.add(Volume(id=17))
        await scene.write(17, due_at=-14_500)
        async with scene.database.engine.begin() as connection:
            past = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-7300 seconds')"
            await connection.execute(text(f"UPDATE rowlock_controls SET paused_at = {past}"))
        to_do = await explains(scene, "paused", pytestconfig)
        await does(scene, to_do)
        await scene.hears(replica, "applied 17")


async def test_held_by_a_service(
    sqlite_database: TemporaryDatabase, pytestconfig: pytest.Config
) -> None:
    """A row that a service keeps would look as if the pipelines had forgotten it."""
    async with shop(sqlite_database) as scene:
        await scene.add(Volume(id=17))
        # The service hears of it at its next renewal, if it still has the row by then.
        with suppress(LeaseLost):
            await _held_until_it_is_released(scene, pytestconfig)


async def _held_until_it_is_released(scene: Shop, config: pytest.Config) -> None:
    sessions, lasting = scene.database.session_factory, timedelta(seconds=30)
    held = hold_rows(sessions, Volume, [17], timeout=5, lock_timeout=lasting, owner="billing")
    async with held:
        await scene.write(17, due_at=-14_500)
        replica = await scene.start("web-7", "VolumePipeline")
        await does(scene, await explains(scene, "held-by-a-service", config, code=0))
        await scene.hears(replica, "applied 17")


async def test_a_hung_transaction(
    postgresql_database: TemporaryDatabase, pytestconfig: pytest.Config
) -> None:
    """A row that every claim passes over would look as if nothing kept it."""
    async with shop(postgresql_database) as scene:
        await scene.add(Volume(id=17))
        await scene.write(17, due_at=-14_500)
        engine = postgresql_database.create_engine()
        async with engine.connect() as hung:
            await hung.execute(text("SELECT * FROM volumes WHERE id = 17 FOR UPDATE"))
            replica = await scene.start("web-7", "VolumePipeline")
            to_do = await explains(scene, "hung-transaction", pytestconfig)
            await hung.invalidate()
            async with postgresql_database.engine.connect() as person:
                ends = text(to_do[to_do.index("SELECT ") :])
                await person.execute(ends)
        await scene.hears(replica, "applied 17")
