"""Three stages: messages come in one order, whatever the layout and the way they take."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.streams.computing.batch import EventBatch
from rowlock.streams.computing.context import StepContext
from rowlock.streams.cutting.plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.testing import TemporaryDatabase, run_until_settled

from .ledger import Ledger, open_ledger


def declare_chain(ledger: Ledger, name: str, **settings: Any) -> StreamFlow[Any]:
    """Declare a flow whose last stage keeps all that it was sent, in order."""
    flow = ledger.streams.flow(name, ledger.transfer, **settings)
    by_payee = flow.exchange("by_payee", str)
    in_batches = by_payee.exchange("in_batches", str)
    kept = in_batches.exchange("kept", str)

    @flow.by_key()
    def route(step: StepContext, payer: str, _: None, events: list[Any]) -> None:
        for event in events:
            step.send(by_payee, event.payee, f"{payer} {event.cents}")
            step.send(kept, event.payee[:2], f"first {payer} {event.cents}")

    @by_payee.by_key(state=int)
    def count(step: StepContext, payee: str, seen: int | None, messages: list[str]) -> int:
        after = (seen or 0) + len(messages)
        for message in messages:
            step.send(in_batches, payee[:2], f"{payee} {message} {after}")
        return after

    @in_batches.batch()
    def pass_on(step: StepContext, batch: EventBatch[str], _: Any) -> None:
        step.send_many(kept, batch.keys, batch.rows)

    @kept.by_key(state=list[str])
    def keep(
        step: StepContext, key: str, before: list[str] | None, messages: list[str]
    ) -> list[str]:
        return [*(before or []), *messages]

    return flow


async def states_of(ledger: Ledger, flow: StreamFlow[Any]) -> list[tuple[str, str, str]]:
    """Return stage, key and value of each state."""
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
                    "rowlock.streams.shards.steering.may_stay_in_memory", lambda *_, **__: False
                )
            await run_until_settled(ledger.sessions, ledger.streams.pipelines(flow))
        found.append(await states_of(ledger, flow))
    assert found[0]
    assert found == [found[0]] * 4
