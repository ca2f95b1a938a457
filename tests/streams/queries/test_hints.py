"""Hints of steps: they reach whoever waits, in each process."""

from __future__ import annotations

import asyncio

from rowlock import pipeline_hinter
from rowlock.testing import TemporaryDatabase

from ...pipelines.lines import Ear, replica


async def test_whoever_waits_for_a_topic_needs_no_manager(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A service that waits for another replica's step would hear of it by polling only."""
    topic, heard = "stream:usage:frontier", asyncio.Event()
    pipeline_hinter.attach(topic, heard.set)
    try:
        async with replica(postgresql_database) as one, replica(postgresql_database, "b") as other:
            ear = Ear(other.manager.hinter, topic)
            one.hint(topic)
            await ear.wait_for(topic)
            assert heard.is_set()
    finally:
        pipeline_hinter.detach(topic, heard.set)
