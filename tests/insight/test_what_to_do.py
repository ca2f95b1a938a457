"""For every verdict: what the explanation says is done, and the verdict is another one then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from sqlalchemy import delete, insert, update

from rowlock.__main__ import command_parser
from rowlock.insight import Explanation, Insight, Verdict, insight_tables
from rowlock.testing import TemporaryDatabase

from .shop import (
    SCENES,
    BackupPipeline,
    Base,
    Fleet,
    FleetPipeline,
    Scene,
    Volume,
    VolumePipeline,
    at,
    furnish,
)
from .test_status import HEALTHY, replica

pytestmark = pytest.mark.either_database

TABLES: Final = insight_tables(Base.metadata)
SIGNED: Final = {"by": "alice", "reason": "it is mended"}
WITHOUT_COMMAND: Final = {
    Verdict.NO_ROW: "look for it",
    Verdict.READY_FAILS: "mend ready()",
    Verdict.RUNNING: "nothing",
    Verdict.QUEUED: "nothing",
    Verdict.NOT_READY: "nothing",
    Verdict.HIDDEN: "nothing",
    Verdict.NOBODY_RUNS: "register VolumePipeline()",
    Verdict.CLAIMS_FAIL: "mend what the error says",
    Verdict.LEFT_BY_DEAD: "nothing",
    Verdict.IN_LINE: "nothing",
}
"""Verdicts whose remedy is no command, and with what it begins."""
Does = Callable[[Insight, Explanation, Any], Awaitable[object]]


async def release(insight: Insight, answer: Explanation, options: Any) -> object:
    assert answer.lease is not None
    return await insight.release(
        options.model, options.id, seen=answer.lease, force=options.force, **SIGNED
    )


DOES: Final[dict[str, Does]] = {
    "release": release,
    "unpark": lambda insight, _, given: insight.unpark(given.model, given.id, **SIGNED),
    "due": lambda insight, _, given: insight.make_due(given.model, given.id, **SIGNED),
    "resume": lambda insight, _, given: insight.resume(given.pipeline, **SIGNED),
}


def insight_on(database: TemporaryDatabase) -> Insight:
    pipelines = [VolumePipeline(), FleetPipeline(), BackupPipeline()]
    return Insight(database.session_factory, pipelines, tables=TABLES)


async def explained(insight: Insight) -> tuple[Explanation, Verdict, str]:
    """Return what is said of volume 17, its verdict, and what to do."""
    answer = await insight.explain("Volume", "17")
    one = answer.pipelines[0]
    return answer, one.verdict, one.do


@pytest.mark.parametrize("name", [name for name in SCENES if name != "no_row"])
async def test_what_is_said_is_done_and_helps(
    database_with_clock: TemporaryDatabase, name: str
) -> None:
    """A person would do what the command says, and be where it was."""
    database = database_with_clock
    await furnish(database, SCENES[name])
    async with database.engine.begin() as connection:
        assert TABLES.replicas is not None
        if name != "nobody_runs":
            await connection.execute(insert(TABLES.replicas).values(replica("3fa2c1d0", "web-7")))
    insight = insight_on(database)
    answer, verdict, do = await explained(insight)
    command = re.search(r"rowlock (?!status).*$", do)
    if command is None:
        assert do.startswith(WITHOUT_COMMAND[verdict])
        await mended(database, verdict)
    else:
        words = shlex.split(command[0])[1:]
        options = command_parser(words).parse_args(words)
        if words[0] == "explain":
            related = await insight.explain(options.model, options.id)
            assert related.is_there
            await mended(database, verdict)
        else:
            await DOES[words[0]](insight, answer, options)
    assert (await explained(insight))[1] is not verdict or name == "in_line_118th"


async def mended(database: TemporaryDatabase, verdict: Verdict) -> None:
    """Do what a host, a replica or time does: each verdict without a command has its own."""
    assert TABLES.replicas is not None
    assert database.clock is not None
    async with database.engine.begin() as connection:
        match verdict:
            case Verdict.NOBODY_RUNS:
                await connection.execute(insert(TABLES.replicas).values(replica("1", "web-7")))
            case Verdict.NOT_READY:
                await connection.execute(update(Volume).values(status="submitted"))
            case Verdict.AWAITED:
                await connection.execute(update(Fleet).values(lock_owner=None))
            case Verdict.IN_LINE:
                await connection.execute(delete(Volume).where(Volume.id != 17))
                await connection.execute(update(Volume).values(status="active"))
            case _:
                free = dict.fromkeys(("lock_token", "lock_owner", "lock_expires_at"))
                await connection.execute(update(Volume).values(free))


async def test_a_pause_is_ended_by_its_command(database_with_clock: TemporaryDatabase) -> None:
    """A person would end a pause that goes on."""
    await furnish(database_with_clock, Scene({"due_at": at(-1)}))
    insight = insight_on(database_with_clock)
    await insight.pause("VolumePipeline", **SIGNED)
    answer, verdict, do = await explained(insight)
    assert verdict is Verdict.PAUSED
    words = shlex.split(do)[1:]
    await DOES[words[0]](insight, answer, command_parser(words).parse_args(words))
    assert (await explained(insight))[1] is not Verdict.PAUSED


async def test_claims_that_fail_go_on_when_the_error_is_mended(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A person would read of an error of long ago."""
    await furnish(database_with_clock, Scene({"due_at": at(-1)}))
    assert TABLES.replicas is not None
    failing = HEALTHY | {"fetch_failures": 3, "last_error": "no answer"}
    row = replica("3fa2c1d0", "web-7", report={"pipelines": {"VolumePipeline": failing}})
    async with database_with_clock.engine.begin() as connection:
        await connection.execute(insert(TABLES.replicas).values(row))
    insight = insight_on(database_with_clock)
    assert (await explained(insight))[1] is Verdict.CLAIMS_FAIL
    async with database_with_clock.engine.begin() as connection:
        report = {"pipelines": {"VolumePipeline": HEALTHY}}
        await connection.execute(update(TABLES.replicas).values(report=report))
    assert (await explained(insight))[1] is Verdict.IN_LINE
