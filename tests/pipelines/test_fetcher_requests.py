"""What a claim asks for is made anew when, and only when, somebody's condition says something
else.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import ColumnElement

from rowlock.errors import HostCodeError, ModelError
from rowlock.leases.claim_request import Position
from rowlock.pipelines.attempt import ready_condition
from rowlock.pipelines.fetcher import UNREADABLE_S, ClaimBuilder
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, AttachmentPipeline, Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, read_all

pytestmark = pytest.mark.either_database(but=["test_limits_are_not_part_of_the_statement"])


class Changing(RunPipeline):
    wanted = "queued"

    def ready(self) -> ColumnElement[bool]:
        return Run.status == self.wanted


class Parent(VolumePipeline):
    """Locks attachments; wants volumes of a size that may change."""

    locks = (Attachment,)
    size_gb = 1

    def ready(self) -> ColumnElement[bool]:
        return super().ready() & (Volume.size_gb == self.size_gb)


class Sibling(AttachmentPipeline):
    wanted = "other"

    def ready(self) -> ColumnElement[bool]:
        return Attachment.status == self.wanted


def orders_of(steps: Steps[Any]) -> ClaimBuilder[Any]:
    return ClaimBuilder(steps.run.context)


async def test_an_order_stands_as_long_as_ready_says_the_same(database: TemporaryDatabase) -> None:
    """Each claim would spend more time on making its statement than the database on executing
    it.
    """
    async with stepping(database.session_factory, RunPipeline()) as steps:
        orders = orders_of(steps)
        one, other = orders.next(3), orders.next(5)
    assert (one.limit, other.limit) == (3, 5)
    assert one.eligible is other.eligible
    assert one.statements is other.statements


@virtual_time
async def test_rows_that_could_not_be_read_are_not_asked_for_again_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """Each claim would fail once, with all its rows, before it is made without them."""
    async with stepping(virtual_database.session_factory, RunPipeline()) as steps:
        steps.run.context.claims_rows = True
        orders = orders_of(steps)
        assert orders.next(1).with_rows
        orders.do_without_rows()
        await asyncio.sleep(UNREADABLE_S - 1)
        assert not orders.next(1).with_rows
        await asyncio.sleep(1)
        assert orders.next(1).with_rows


async def test_a_condition_that_changes_is_followed_at_once(database: TemporaryDatabase) -> None:
    """The pipeline would go on claiming what its host no longer wants."""
    await add(database, Run(id=1), Run(id=2, status="held"))
    pipeline = Changing()
    async with stepping(database.session_factory, pipeline) as steps:
        assert [item.id for item in await steps.fetch_once()] == [1]
        await steps.work_all()
        pipeline.wanted = "held"
        assert [item.id for item in await steps.fetch_once()] == [2]
        await steps.work_all()
        pipeline.wanted = "queued"
        assert await steps.fetch_once() == []
    assert {row.status for row in await read_all(database, Run)} == {"done"}


async def test_conditions_of_the_others_are_followed_too(database: TemporaryDatabase) -> None:
    """Children would be kept for a parent that no longer wants them."""
    parent, sibling = Parent(), Sibling()
    async with stepping(
        database.session_factory, AttachmentPipeline(), beside=[parent, sibling]
    ) as steps:
        orders = orders_of(steps)
        first = orders.next(1)
        assert orders.next(1).eligible is first.eligible
        parent.size_gb = 2
        second = orders.next(1)
        assert second.eligible is not first.eligible
        # What a sibling wants is none of its business.
        sibling.wanted = "another"
        assert orders.next(1).eligible is second.eligible


async def test_limits_are_not_part_of_the_statement(database: TemporaryDatabase) -> None:
    """The second claim would lease as many rows as the first one had room for."""
    await add(database, *(Run(id=number) for number in range(1, 9)))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        assert len(await steps.fetch_once(1)) == 1
        assert len(await steps.fetch_once(5)) == 5
        assert len(await steps.fetch_once(1)) == 1


async def test_an_order_is_what_this_claim_asks_for(database: TemporaryDatabase) -> None:
    """A claim would start at the head again, or leave the children of a dead holder locked."""
    where = Position(None, 7)
    async with stepping(database.session_factory, Parent(lock_timeout=50)) as steps:
        orders = orders_of(steps)
        plain, resumed = orders.next(1), orders.next(2, after=where)
    assert (plain.after, resumed.after, plain.owner) == (None, where, "Parent")
    assert [table.model for table in plain.related] == [Attachment]
    assert plain.lock_timeout == steps.run.context.settings.lock_timeout


@virtual_time
async def test_after_a_row_that_could_not_be_read_claims_do_without_for_a_while(
    virtual_database: TemporaryDatabase,
) -> None:
    """Each claim would fail for the sake of one row; or each row of a table that is well cost
    one more round trip for ever.
    """
    async with stepping(virtual_database.session_factory, RunPipeline()) as steps:
        orders, seen = orders_of(steps), list[bool]()
        steps.run.context.claims_rows = True
        seen.append(orders.next(1).with_rows)
        orders.do_without_rows()
        for rest_s in (0.0, UNREADABLE_S - 0.1, 0.1):
            await asyncio.sleep(rest_s)
            seen.append(orders.next(1).with_rows)
        steps.run.context.queue.starts_soon = False
        seen.append(orders.next(1).with_rows)
    assert seen == [True, False, False, True, False]


# ---------------------------------------------------------------- what ready says


def asked(said: Any) -> Any:
    def ready() -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    return ready_condition("Mine", LeasedTable.of(Volume), ready)


def test_a_mapped_attribute_is_a_condition() -> None:
    """A host with a column that says it all would have to write it in a longer way."""
    assert asked(Volume.status) is Volume.status.expression
    assert asked(Volume.__table__.c.status) is Volume.__table__.c.status


def test_what_is_no_condition_is_named() -> None:
    """A host could not tell which pipeline it is, of what model, and what it returned."""
    with pytest.raises(
        ModelError,
        match=r"Mine\.ready\(\) must return one SQL expression, such as Volume\.status ==",
    ) as caught:
        asked("x" * 500)
    assert (caught.value.model, len(str(caught.value)) < 300) == ("Volume", True)
    assert "not 'xxx" in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()], ids=repr)
def test_what_ready_raises_never_ends_a_loop(error: BaseException) -> None:
    """A fetcher would end, and an error not be known for what it is."""
    with pytest.raises(ValueError if isinstance(error, ValueError) else HostCodeError) as caught:
        asked(error)
    if isinstance(caught.value, HostCodeError):
        assert caught.value.__cause__ is error
        assert f"Mine.ready() ended with {type(error).__name__}" in str(caught.value)
