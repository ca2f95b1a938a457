"""Rows that come with their claim are what a SELECT gives."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.transaction import in_transaction
from rowlock.leases.claim import claim, load_rows
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from .kinds import ByForeignKey, ByNumber, ByUuid, Cat
from .test_dialects import TIMEOUT, each_kind, insert_rows, order_for


@each_kind
async def test_rows_that_come_with_a_claim_are_whole(
    database: TemporaryDatabase, model: type[Any]
) -> None:
    """`process` would be given a row that is not what a SELECT gives: without a column, or as it
    was before the claim.
    """
    leased = LeasedTable.of(model)
    if not leased.is_plain:
        pytest.skip("such rows are read by a statement of their own")
    keys = await insert_rows(database, *(model() for _ in range(3)))
    order = replace(order_for(leased), with_rows=True)
    items = await claim(
        database.session_factory, order, lease_margin=timedelta(seconds=3), timeout=TIMEOUT
    )
    assert {item.id for item in items} == set(keys)

    async def read(session: AsyncSession, connection: AsyncConnection) -> list[Any]:
        return await load_rows(session, leased, items)

    rows = await in_transaction(
        database.session_factory, leased, read, purpose="read", timeout=TIMEOUT
    )
    columns = [
        column for column in leased.table.columns if column in leased.mapper.columns.values()
    ]
    for item, row in zip(items, rows, strict=True):
        assert [leased.value_as_read(item.row, column) for column in columns] == [
            leased.value_as_read(row, column) for column in columns
        ]
        assert inspect(item.row).detached


@pytest.mark.parametrize(
    ("model", "is_plain"), [(ByUuid, True), (ByNumber, True), (ByForeignKey, False), (Cat, False)]
)
def test_which_rows_can_come_with_a_claim(model: type[Any], *, is_plain: bool) -> None:
    """What comes eagerly with a row would be missing now and then."""
    assert LeasedTable.of(model).is_plain == is_plain
