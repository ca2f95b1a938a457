"""A flow's rows: made once, by whoever comes first, and never read by another declaration."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, update

from rowlock import PipelineManager
from rowlock.errors import ConfigurationError, SettingsError
from rowlock.stream_errors import FlowChangedError, ShardsMissingError
from rowlock.streams.flow_row import ensure_flow
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase, run_until_settled, stepping

from .flows import FAST, Bank, add_up, is_at_end, new_base, open_bank, until

pytestmark = pytest.mark.either_database(but=["test_replicas_that_start_together_make_one_flow"])


def transact_of(bank: Bank) -> Any:
    pipeline = bank.pipeline()
    return pipeline.build_run(bank.sessions, PipelineManager(bank.sessions).hinter).context.transact


async def test_replicas_that_start_together_make_one_flow(database: TemporaryDatabase) -> None:
    """A flow would have its shards twice, or a replica fail because another was faster."""
    bank = await open_bank(database, shards=8)
    add_up(bank)
    transact = transact_of(bank)
    await asyncio.gather(*(ensure_flow(bank.flow.program, transact) for _ in range(8)))
    assert (await bank.count("flows"), await bank.count("shards")) == (1, 8)
    assert await bank.count("steps") == 1


@pytest.mark.parametrize("left", [0, 3])
async def test_missing_shards_are_an_error(database: TemporaryDatabase, left: int) -> None:
    """After a restore that was not whole, a shard would begin with nothing, and count all again."""
    bank = await open_bank(database, shards=4)
    add_up(bank)
    await bank.pay(40)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    shards, before = bank.streams.tables.shards, await bank.results()
    gone = [row.id for row in await bank.shards()][left:]
    async with bank.sessions.begin() as session:
        await session.execute(delete(shards).where(shards.c.id.in_(gone)))
    await bank.pay(40)
    async with stepping(bank.sessions, bank.pipeline()) as steps:
        with pytest.raises(ShardsMissingError, match="'balances'"):
            await steps.fetch_once()
        assert steps.queued == ()
    rows = await bank.shards()
    assert [row.lock_token for row in rows] == [None] * left
    assert await bank.results() == before


async def test_a_changed_flow_is_refused(database: TemporaryDatabase) -> None:
    """States would be read as what they are not."""
    bank = await open_bank(database)
    add_up(bank)
    await ensure_flow(bank.flow.program, transact_of(bank))
    changed = Streams(bank.streams.tables.flow_model)
    changed.tables = bank.streams.tables
    flow = changed.flow("balances", bank.payment)

    @flow.by_key(state=str)
    def other(step: Any, key: str, state: str | None, events: list[Any]) -> str:
        return ""

    with pytest.raises(FlowChangedError, match="str") as caught:
        await ensure_flow(flow.program, transact_of(bank))
    assert caught.value.stored == bank.flow.program.description
    assert caught.value.message == (
        "the flow 'balances' is declared otherwise than it is stored: declared stage other by_key"
        " str; stored stage add by_key int; output seen int"
    )
    async with bank.sessions.begin() as session:
        await session.execute(update(bank.streams.tables.flows).values(declaration=None))
    with pytest.raises(FlowChangedError, match=r"outputs than these: source .*; stage other"):
        await ensure_flow(flow.program, transact_of(bank))


async def test_sources_in_another_order(database: TemporaryDatabase) -> None:
    """A host would be shown two declarations that have the same parts, and no difference."""
    bank = await open_bank(database)
    orders = []
    for names in (("one", "two"), ("two", "one")):
        streams = Streams(bank.streams.tables.flow_model)
        streams.tables = bank.streams.tables
        flow = streams.flow("both", *[streams.log(name, str, key=str) for name in names])
        flow.by_key()(lambda step, key, state, events: None)
        orders.append(flow.program)
    add_up(bank)
    await ensure_flow(orders[0], transact_of(bank))
    with pytest.raises(FlowChangedError, match="another order: source one = log of str; source"):
        await ensure_flow(orders[1], transact_of(bank))


async def test_the_same_flow_is_the_same_in_each_process(database: TemporaryDatabase) -> None:
    """A service would be refused by its own flow after each restart."""
    banks = [await open_bank(database) for _ in range(2)]
    for bank in banks:
        add_up(bank)
    one, other = [bank.flow.program for bank in banks]
    assert one.description == other.description
    assert one.fingerprint == other.fingerprint
    assert "stage add by_key int" in one.description


async def test_a_flow_may_begin_now(database: TemporaryDatabase) -> None:
    """A flow over a table of years would begin with its first row."""
    bank = await open_bank(database, start="now", **FAST)
    add_up(bank)
    await bank.pay(50)
    bank.paid.clear()
    await ensure_flow(bank.flow.program, transact_of(bank))
    await bank.pay(50)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid


def test_what_is_declared_wrongly_is_told_at_once() -> None:
    """A host would hear of it when its service starts, or from a row."""
    base, payment = new_base()
    streams = Streams(base)
    with pytest.raises(ConfigurationError, match="need a declarative base, not 'x'"):
        Streams("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no source"):
        streams.flow("one", "payments")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="0 sources"):
        streams.flow("one")
    with pytest.raises(ConfigurationError, match="two sources"):
        streams.flow("one", payment, payment)
    with pytest.raises(ConfigurationError, match="starts with"):
        streams.flow("one", payment, start="later")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="step_rows_max"):
        streams.flow("one", payment, step_rows_max=0)
    for name in ("one/two", "one\ntwo", "one\x7f"):
        with pytest.raises(ConfigurationError, match="without '/'"):
            streams.flow(name, payment)
    with pytest.raises(ConfigurationError, match="control characters"):
        streams.flow("one", payment, version="1\n2")
    flow = streams.flow("one", payment)
    with pytest.raises(ConfigurationError, match="already"):
        streams.flow("one", payment)
    flow.output("out", int)
    with pytest.raises(ConfigurationError, match="already"):
        flow.output("out", int)
    with pytest.raises(ConfigurationError, match="not 'skip'"):
        flow.by_key(poison="skip")  # type: ignore[call-overload]

    @flow.by_key()
    def nothing(step: Any, key: str, state: None, events: list[Any]) -> None:
        return None

    with pytest.raises(ConfigurationError, match="has a handler"):
        flow.by_key()(nothing)
    pipeline, _ = streams.pipelines()
    assert isinstance(pipeline, FlowPipeline)
    with pytest.raises(ConfigurationError, match="runs already"):
        flow.output("late", int)
    other = Streams(new_base()[0]).flow("other", payment)
    with pytest.raises(ConfigurationError, match="no flow of these"):
        streams.pipelines(other)
