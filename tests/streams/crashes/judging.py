"""Compares what a flow has come to with a recount that knows nothing of the wing but its cuts.

The cuts are those that the replicas made; what each of them has to come to then is counted from the
host's rows, one by one, with a dict.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from sqlalchemy import select

from rowlock.testing import TemporaryDatabase

from .host import ALARM_ABOVE, Alarm, Balance, Invoiced, Payment
from .stories import CLICKS, CONSUMER, FlowStory

Results = list[tuple[int, str, int]]
"""Step, key and value of each result."""


async def rows_of(database: TemporaryDatabase, table: Any) -> list[Any]:
    """Return all rows of a table."""
    async with database.session_factory() as session:
        return list((await session.execute(select(table))).all())


async def judge(database: TemporaryDatabase, story: FlowStory) -> None:
    """Check that each event counts once, that nothing is left to do, and that nobody holds
    anything.
    """
    tables = story.flow().streams.tables
    (flow,) = await rows_of(database, tables.flows)
    shards = await rows_of(database, tables.shards)
    assert len(shards) == story.shards
    assert sum(one.hi - one.lo for one in shards) == 1 << 16
    assert {(one.step, one.version) for one in shards} == {(flow.next_step, flow.next_step)}
    assert [one.last_error for one in shards if one.lock_token or one.parked_at] == []
    states = {
        row.key: int(row.value)
        for row in await rows_of(database, tables.state)
        if row.value is not None
    }
    if flow.name == "clicks":
        assert states == _clicked()
        kept = 0 if story.days else sum(map(len, CLICKS))
        assert len(await rows_of(database, tables.log)) == kept
        return
    moves = [(row.position, _moves(row, flow.name)) for row in await _payments(database)]
    cuts = sorted((row.step, row.upto["payments"]) for row in await rows_of(database, tables.steps))
    results, balances = _recount(moves, cuts)
    if flow.name == "folded":
        counts = Counter(row.account for row in await _payments(database))
        found = await rows_of(database, Balance.__table__)
        assert {one.account: one.cents for one in found} == balances
        assert {one.account: one.payments for one in found} == counts
        return
    assert states == balances
    if flow.name == "alarms":
        told = await rows_of(database, Alarm.__table__)
        assert sorted((one.account, one.cents) for one in told) == _alarms(results)
        return
    outputs = await rows_of(database, tables.outputs)
    assert sorted((row.step, row.key, int(row.payload)) for row in outputs) == results
    if story.name == "ack":
        invoiced = await rows_of(database, Invoiced.__table__)
        assert sorted((row.step, row.account, row.cents) for row in invoiced) == results
        cursors = await rows_of(database, tables.cursors)
        assert [(row.consumer, row.step) for row in cursors] == [(CONSUMER, results[-1][0])]


async def _payments(database: TemporaryDatabase) -> list[Any]:
    table: Any = Payment.__table__
    async with database.session_factory() as session:
        return list((await session.execute(select(table).order_by(table.c.position))).all())


def _moves(row: Any, flow: str) -> list[tuple[str, int]]:
    if flow == "ledger":
        return [(row.account, -row.cents), (row.payee, row.cents)]
    return [(row.account, row.cents)]


def _recount(
    rows: list[tuple[int, list[tuple[str, int]]]], cuts: list[tuple[int, int]]
) -> tuple[Results, dict[str, int]]:
    """Return what each step has to come to, and what is there behind the last one."""
    left, balances, results = deque(rows), Counter[str](), list[tuple[int, str, int]]()
    for step, upto in cuts:
        touched = set()
        while left and left[0][0] <= upto:
            for account, cents in left.popleft()[1]:
                balances[account] += cents
                touched.add(account)
        results += [(step, account, balances[account]) for account in sorted(touched)]
    assert not left, "a row is in no step"
    return results, dict(balances)


def _clicked() -> dict[str, int]:
    sums = Counter[str]()
    for batch in CLICKS:
        for one in batch:
            sums[one.account] += one.cents
    return dict(sums)


def _alarms(results: Results) -> list[tuple[str, int]]:
    first: dict[str, int] = {}
    for _, account, cents in results:
        if cents > ALARM_ABOVE:
            first.setdefault(account, cents)
    return sorted(first.items())
