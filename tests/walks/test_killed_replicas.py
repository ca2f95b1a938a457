"""Replicas that die or freeze: what they held is finished by others, once."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from rowlock.testing import TemporaryDatabase

from .processes import history, locked, make_tables, post_letters, replicas

LETTERS = 200


@pytest.mark.parametrize("lines_before_kill", [1, 37, 90])
async def test_a_killed_replica_loses_and_doubles_nothing(
    database: TemporaryDatabase, lines_before_kill: int
) -> None:
    """kill -9 in the middle would lose the rows that were in hand, or have them settled twice."""
    await make_tables(database)
    async with replicas(database, "steady", "steady", "steady", count=LETTERS) as (victim, *others):
        await post_letters(database, LETTERS)
        # The others may be faster: whatever is in the victim's hand at this moment is what counts.
        await victim.wait_for_lines(lines_before_kill)
        with suppress(ProcessLookupError):  # it may have been the fastest of all
            os.kill(victim.pid, signal.SIGKILL)
        for other in others:
            await other.wait_for("Done")
    settled = await history(database)
    assert [letter for letter, _ in settled] == list(range(1, LETTERS + 1))
    assert await locked(database) == 0


async def test_what_a_dead_replica_held_is_taken_over(database: TemporaryDatabase) -> None:
    """Rows in the hand of a dead replica would stay locked for ever."""
    await make_tables(database)
    await post_letters(database, 3)
    async with replicas(database, "held", count=3) as (holder,):
        held = await holder.wait_for("Holding", times=3)
        os.kill(holder.pid, signal.SIGKILL)
        async with replicas(database, "steady", count=3) as (heir,):
            assert sorted(await heir.wait_for("ItemApplied", times=3)) == sorted(held)
            await heir.wait_for("Done")
    assert [by for _, by in await history(database)] == [heir.pid] * 3
    assert await locked(database) == 0


async def test_a_thawed_replica_applies_nothing(database: TemporaryDatabase) -> None:
    """A replica that was frozen past its lease would overwrite what its heir has written."""
    await make_tables(database)
    await post_letters(database, 1)
    async with replicas(database, "held", count=1) as (frozen,):
        await frozen.wait_for("Holding")
        os.kill(frozen.pid, signal.SIGSTOP)
        async with replicas(database, "steady", count=1) as (heir,):
            await heir.wait_for("Done")
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.say_go_on()
        await frozen.wait_for("LeaseExpired")
        await frozen.wait_for("Done")
        assert "ItemApplied" not in {line["event"] for line in frozen.told}
    assert await history(database) == [(1, heir.pid)]
    assert await locked(database) == 0
