"""Snapshots that cannot be read, and what is said of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from rowlock import ConfigurationError, PipelineError, PipelineManager, StoreClosedError
from rowlock.streams import StepContext, Streams
from rowlock.testing import TemporaryDatabase

from ..folds.books import Payment, open_books
from ..walk.payments import Paid
from ..walk.waiting import until
from .reading import LONG_S, read, started_bank

pytestmark = pytest.mark.either_database


async def test_behind_its_block_nothing_is_read(database: TemporaryDatabase) -> None:
    """States would be read that nobody keeps."""
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            pass
        with pytest.raises(StoreClosedError) as caught:
            await read(frozen)
    assert caught.value.version == frozen.step


async def test_what_has_no_states_is_refused(database: TemporaryDatabase) -> None:
    """An audit would find nothing, and report that all is well."""
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            with pytest.raises(ConfigurationError, match="none named 'ad'"):
                frozen.items("ad", int)
            with pytest.raises(ConfigurationError, match="are int"):
                frozen.items("add", str)
            with pytest.raises(ConfigurationError, match="another function"):
                frozen.items(lookalike())
        service = Streams(bank.streams.tables.flow_model)
        service.tables = bank.streams.tables
        foreign = service.flow("balances", bank.payment)
        async with foreign.snapshot(bank.sessions, timeout=LONG_S) as seen:
            assert await read(seen) == bank.paid
            with pytest.raises(ConfigurationError, match="pass the type"):
                seen.items("add")
    with pytest.raises(PipelineError, match="no row yet"):
        await service.flow("unknown", bank.payment).snapshot(bank.sessions).__aenter__()


def lookalike() -> Any:
    """Return a function that is named as a handler is."""

    def add(step: StepContext, key: str, state: int | None, events: list[Paid]) -> int:
        return 1

    return add


async def test_folds_are_refused(database: TemporaryDatabase) -> None:
    """Rows of the host would be missing, since there is no second version of them."""
    books = await open_books(database)
    bare = books.streams.flow("bare", Payment)

    @bare.by_key()
    def look(step: StepContext, key: str, state: None, events: list[Any]) -> None:
        return None

    async with PipelineManager(database.session_factory, books.streams.pipelines()):
        for flow, name, match in ((books.flow, "add", "is a fold"), (bare, "look", "keeps no")):
            await until(partial(has_row, database, flow, books.streams))
            async with flow.snapshot(database.session_factory, timeout=LONG_S) as frozen:
                with pytest.raises(ConfigurationError, match=match):
                    frozen.items(name)


async def has_row(database: TemporaryDatabase, flow: Any, streams: Streams) -> bool:
    table = streams.tables.flows
    async with database.session_factory() as session:
        return await session.scalar(select(table.c.id).where(table.c.name == flow.name)) is not None
