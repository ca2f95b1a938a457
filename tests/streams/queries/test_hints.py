"""Hints of steps: they reach whoever waits, in each process."""

from __future__ import annotations

import asyncio

from rowlock import pipeline_hinter
from rowlock.testing import TemporaryDatabase

from ...host import HANG_S_MAX
from ...pipelines.lines import replica


async def test_whoever_waits_for_a_topic_needs_no_manager(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A service that waits for another replica's step would hear of it by polling only."""
    topic, heard = "stream:usage:frontier", asyncio.Event()
    pipeline_hinter.attach(topic, heard.set)
    try:
        async with replica(postgresql_database) as one, replica(postgresql_database, "b"):
            one.hint(topic)
            async with asyncio.timeout(HANG_S_MAX):
                await heard.wait()
    finally:
        pipeline_hinter.detach(topic, heard.set)
