"""Compares what a flow has come to with a recount that knows nothing of the wing but its cuts.

The cuts are those that the replicas made; what each of them has to come to then is counted from the
host's rows, one by one, with a dict.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from sqlalchemy import select

from rowlock.streams.cursors import DISCARDED, NONE_YET
from rowlock.testing import TemporaryDatabase

from .host import ALARM_ABOVE, Alarm, Balance, Frozen, Invoiced, Payment, Told
from .plays import CLICKS, CONSUMER
from .story import FlowStory

Results = list[tuple[int, str, int]]
"""Step, key and value of each result."""


async def rows_of(database: TemporaryDatabase, table: Any) -> list[Any]:
    async with database.session_factory() as session:
        return list((await session.execute(select(table))).all())


async def judge(database: TemporaryDatabase, story: FlowStory) -> None:
    """Check that each event counts once, that nothing is left to do, and that nobody holds
    anything.
    """
    declared = story.flow()
    tables = declared.streams.tables
    flows = {row.name: row for row in await rows_of(database, tables.flows)}
    shards = await rows_of(database, tables.shards)
    assert set(flows) == set(declared.streams.flows)
    for flow in flows.values():
        _judge_shards(flow, [one for one in shards if one.flow_id == flow.id])
    own = flows[declared.flow.name].id
    assert len([one for one in shards if one.flow_id == own]) == story.shards
    states: dict[str, dict[str, int]] = {name: {} for name in flows}
    names = {row.id: name for name, row in flows.items()}
    for row in await rows_of(database, tables.state):
        if row.value is not None:
            states[names[row.flow_id]][row.key] = int(row.value)
    if "clicks" in flows:
        assert states == {"clicks": _clicked()}
        kept = 0 if story.days else sum(map(len, CLICKS))
        assert len(await rows_of(database, tables.log)) == kept
    else:
        await _judge_payments(database, story, states, flows)


def _judge_shards(flow: Any, shards: list[Any]) -> None:
    assert sum(one.hi - one.lo for one in shards) == 1 << 16
    assert {(one.step, one.version) for one in shards} == {(flow.next_step, flow.next_step)}
    assert [one.last_error for one in shards if one.lock_token or one.parked_at] == []


async def _judge_payments(
    database: TemporaryDatabase,
    story: FlowStory,
    states: dict[str, dict[str, int]],
    flows: dict[str, Any],
) -> None:
    tables = story.flow().streams.tables
    first = next(iter(story.flow().streams.flows))
    payments = await _payments(database)
    moves = [(row.position, _moves(row, first)) for row in payments]
    steps = [row for row in await rows_of(database, tables.steps) if row.flow_id == flows[first].id]
    cuts = sorted((row.step, row.upto["payments"]) for row in steps)
    results, balances = _recount(moves, cuts)
    if first == "folded":
        found = await rows_of(database, Balance.__table__)
        assert {one.account: one.cents for one in found} == balances
        counts = Counter(row.account for row in payments)
        assert {one.account: one.payments for one in found} == counts
        return
    assert states[first] == balances
    if first == "alarms":
        await _judge_alarms(database, results, are_delivered=story.name == "delivery")
        return
    outputs = await rows_of(database, tables.outputs)
    assert sorted((row.step, row.key, int(row.payload)) for row in outputs) == results
    if "sums" in states:
        assert states["sums"] == _summed(results)
    if story.name == "ack":
        invoiced = await rows_of(database, Invoiced.__table__)
        assert sorted((row.step, row.account, row.cents) for row in invoiced) == results
        cursors = await rows_of(database, tables.cursors)
        # Beside it stands up to where results were discarded: none were.
        known = {row.consumer: row.step for row in cursors}
        assert known == {CONSUMER: results[-1][0], DISCARDED: NONE_YET}
    frozen: dict[int, dict[str, int]] = {}
    for row in await rows_of(database, Frozen.__table__):
        frozen.setdefault(row.step, {})[row.account] = row.cents
    assert bool(frozen) == story.name.startswith("snapshot")
    for step, found in frozen.items():
        upto = dict(cuts)[step - 1]
        before = [one for one in moves if one[0] <= upto]
        assert found == _recount(before, cuts)[1], f"the snapshot at step {step}"


async def _judge_alarms(
    database: TemporaryDatabase, results: Results, *, are_delivered: bool
) -> None:
    alarms = await rows_of(database, Alarm.__table__)
    assert sorted((one.account, one.cents) for one in alarms) == _alarms(results)
    if are_delivered:
        told = await rows_of(database, Told.__table__)
        expected = sorted((one.dedup_key, one.account, one.cents) for one in alarms)
        assert sorted((one.key, one.account, one.cents) for one in told) == expected
        assert {one.status for one in alarms} == {"completed"}


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


def _summed(results: Results) -> dict[str, int]:
    sums = Counter[str]()
    for _, account, cents in results:
        sums[account] += cents
    return dict(sums)


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
