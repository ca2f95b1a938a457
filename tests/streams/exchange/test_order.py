"""Three stages: messages come in one order, whatever the layout."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.streams import Checkpoint, StreamFlow
from rowlock.testing import TemporaryDatabase, run_until_settled

from .chain import declare_chain
from .ledger import Ledger, open_ledger

pytestmark = pytest.mark.either_database


async def states_of(ledger: Ledger, flow: StreamFlow[Any]) -> list[tuple[str, str, str]]:
    rows = await ledger.rows("state", "name", "key")
    return [(row.name, row.key, row.value) for row in rows if row.flow_id == flow.program.id]


async def test_one_order(database: TemporaryDatabase) -> None:
    """A handler for which order counts would come to something else with other shards."""
    ledger = await open_ledger(database)
    await ledger.transfer_some(120)
    found = []
    for shards, steps in ((1, 1), (2, 7), (16, 1), (4, 7)):
        name = f"{shards} shards"
        flow = declare_chain(
            ledger, name, shards=shards, step_rows_max=120, checkpoint=Checkpoint(steps=steps)
        )
        await run_until_settled(ledger.sessions, ledger.streams.pipelines(flow))
        found.append(await states_of(ledger, flow))
    assert found[0]
    assert found == [found[0]] * 4
