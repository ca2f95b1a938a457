"""A flow of four stages over transfers, whose last one keeps all that it was sent, in order."""

from __future__ import annotations

from typing import Any

from rowlock.streams import EventBatch, StepContext, StreamFlow

from .ledger import Ledger


def declare_chain(ledger: Ledger, name: str, **settings: Any) -> StreamFlow[Any]:
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
