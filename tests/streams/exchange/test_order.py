"""Three stages: messages come in one order, whatever the layout and the way they take."""

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


async def test_one_order(database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler for which order counts would come to something else with other shards."""
    ledger = await open_ledger(database)
    await ledger.transfer_some(120)
    found = []
    for shards, steps, in_memory in ((1, 1, True), (2, 7, True), (16, 1, False), (4, 7, False)):
        name = f"{shards} shards"
        flow = declare_chain(
            ledger, name, shards=shards, step_rows_max=120, checkpoint=Checkpoint(steps=steps)
        )
        with monkeypatch.context() as patch:
            if not in_memory:
                patch.setattr(
                    "rowlock.streams.shards.steps.may_stay_in_memory", lambda *_, **__: False
                )
            await run_until_settled(ledger.sessions, ledger.streams.pipelines(flow))
        found.append(await states_of(ledger, flow))
    assert found[0]
    assert found == [found[0]] * 4
