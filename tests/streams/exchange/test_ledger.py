"""The ledger sums up to zero at every step, whatever the layout."""

from __future__ import annotations

import pytest

from rowlock.streams import Checkpoint
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length
from .ledger import open_ledger


@pytest.mark.parametrize(("steps", "shards"), [(1, at_length(4, 16)), (7, 1), (7, 2)])
async def test_each_transfer_is_posted_twice(
    database: TemporaryDatabase, steps: int, shards: int
) -> None:
    """A posting would be lost, or counted twice, in one of the modes or layouts."""
    ledger = await open_ledger(database, shards=shards, checkpoint=Checkpoint(steps=steps))
    for _ in range(3):
        await ledger.transfer_some(150)
        # Without the coordinator, which deletes messages that no shard needs.
        pipelines = [one for one in ledger.streams.pipelines() if isinstance(one, FlowPipeline)]
        await run_until_settled(ledger.sessions, pipelines)
        # What stops writes its states, in every mode.
        await ledger.check_states()
    await ledger.check()
    row = await ledger.flow_row()
    assert {(one.step, one.version) for one in await ledger.shards()} == {(row.next_step,) * 2}
    assert row.next_step >= 9
