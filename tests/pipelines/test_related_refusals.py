"""What cannot be locked or written as a related row is refused early, with what to change."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, true
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    ConfigurationError,
    LockColumns,
    ModelError,
    Pipeline,
    PipelineError,
    PipelineManager,
    Related,
    RelatedLockUnavailable,
    events,
    get_locker,
)
from rowlock.leases import acquire as take_module
from rowlock.leases import related as related_module
from rowlock.testing import TemporaryDatabase, stepping
from rowlock.testing.databases import open_sqlite_database

from ..host import HANG_S_MAX, Attachment, Base, Run, Volume, heard_events
from .related_scenes import (
    ATTACHMENTS,
    GatheringPipeline,
    add_volume,
    at_work,
    attachments_of,
    locks_of,
)
from .scenes import add, counted, faults_of, read, ticket

pytestmark = pytest.mark.either_database(
    but=[
        "test_rows_of_another_database_are_refused",
        "test_engines_that_differ_in_options_are_of_one_database",
        "test_a_shared_lock_has_a_name_however_long_the_key_is",
    ]
)


async def test_only_a_claimed_item_locks(database: TemporaryDatabase) -> None:
    """An item that no pipeline gave out would lock under a token that no row has."""
    with pytest.raises(PipelineError, match="not claimed by a pipeline"):
        await ticket().lock_related(Attachment, Attachment.name == "0")


@pytest.mark.parametrize("where", [True, "name = '0'", None, [1]])
async def test_where_is_an_expression(database: TemporaryDatabase, where: Any) -> None:
    """A comparison that Python made would lock every row, or none."""
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        with pytest.raises(PipelineError, match="one SQL expression, such as Attachment"):
            await item.lock_related(Attachment, where)


async def test_a_model_without_lock_columns_is_refused(database: TemporaryDatabase) -> None:
    """A row without a place for the token cannot be locked."""

    class Plain(Base):
        __tablename__ = "plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    try:
        async with at_work(database, GatheringPipeline()) as (steps, _):
            [item] = steps.queued
            with pytest.raises(ModelError, match="lock_token"):
                await item.lock_related(Plain, Plain.id == 1)
    finally:
        Base.metadata.remove(Plain.__table__)  # type: ignore[arg-type]


def test_an_owner_that_does_not_fit_is_refused() -> None:
    """Related rows would carry a name that was cut off, or none of them could be locked once
    work has begun.
    """

    class Narrow(DeclarativeBase):
        pass

    class Slot(LockColumns, Narrow):
        __tablename__ = "slots"
        id: Mapped[int] = mapped_column(primary_key=True)
        lock_owner: Mapped[str | None] = mapped_column(String(7))

    class Narrowed(GatheringPipeline):
        locks = (Attachment, Related(Slot, on=true()))

    with pytest.raises(ModelError, match=r"Narrowed.* does not fit into Slot\.lock_owner"):
        Narrowed()


async def test_too_many_rows_are_refused(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition that was forgotten would lock a whole table."""
    monkeypatch.setattr(take_module, "ACQUIRED_ROWS_MAX", ATTACHMENTS - 1)
    async with at_work(database, GatheringPipeline()) as (steps, _):
        await steps.work_once()
        assert counted(steps)["retried"] == 1
    assert await locks_of(database) == {}


async def test_many_calls_do_not_lock_too_many_rows(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome would have to free more rows than a statement can name, and never be written."""
    monkeypatch.setattr(related_module, "ACQUIRED_ROWS_MAX", ATTACHMENTS - 1)
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.name != "0")
        with pytest.raises(PipelineError, match="at most 2 related rows"):
            await item.lock_related(Attachment, Attachment.name == "0")
    assert await locks_of(database) == {}


async def test_rows_of_another_database_are_refused(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """Two databases have no transaction in common in which both rows could be freed."""
    async with aclosing(open_sqlite_database(tmp_path / "other.db")) as other:
        await other.create_tables(Base.metadata)
        await add_volume(database)

        class Routed(AsyncSession):
            def __init__(self, **options: Any) -> None:
                super().__init__(
                    **options | {"binds": {Volume: database.engine, Attachment: other.engine}}
                )

        sessions = async_sessionmaker(class_=Routed)
        with pytest.raises(
            ConfigurationError, match="Attachment lives in another database than Volume"
        ):
            PipelineManager(sessions, [GatheringPipeline()])
        with pytest.raises(
            ConfigurationError, match="Attachment lives in another database than Volume"
        ):
            GatheringPipeline().check_can_run(sessions)


async def test_engines_that_differ_in_options_are_of_one_database(
    database: TemporaryDatabase,
) -> None:
    """A host that routes its models by options of one engine could lock none of its related
    rows.
    """
    await add_volume(database)

    class Optioned(AsyncSession):
        def __init__(self, **options: Any) -> None:
            other = database.engine.execution_options(logging_token="other")
            super().__init__(**options | {"binds": {Volume: database.engine, Attachment: other}})

    async with stepping(async_sessionmaker(class_=Optioned), GatheringPipeline()) as steps:
        [item] = await steps.fetch_once()
        assert (
            len(await item.lock_related(Attachment, Attachment.volume_id == item.id)) == ATTACHMENTS
        )


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("related", "says"),
    [
        (lambda rows: {rows[0]: {"no such": 1}}, "no column 'no such'"),
        (lambda rows: {rows[0]: {"lock_owner": None}}, "written by rowlock"),
        (lambda rows: {rows[0]: {"id": 1}}, "primary key"),
        (lambda rows: {rows[0]: ["status"]}, "must be a dict"),
        (lambda rows: {rows[0]: {}, (Attachment, rows[0].id): {}}, "twice"),
        (lambda rows: {(Attachment, "of somebody else"): {}}, "is not locked by this item"),
        (lambda rows: {(Run, 1): {}}, "is not locked by this item"),
        (lambda rows: {Attachment(): {}}, "as lock_related"),
        (lambda rows: {"an attachment": {}}, "as lock_related"),
        (list, "related must be a dict"),
    ],
)
async def test_what_cannot_be_written_is_refused(
    database: TemporaryDatabase, related: Any, says: str
) -> None:
    """Half of an outcome would be written, or none without a word."""
    pipeline = GatheringPipeline(
        then=lambda _item, rows: Apply({"status": "active"}, related=related(rows))
    )
    with heard_events() as heard:
        async with at_work(database, pipeline) as (steps, volume):
            await steps.work_once()
    [failure] = heard.of(events.ItemFailed)
    assert failure.error.startswith("OutcomeError: ")
    assert says in failure.error
    assert (await read(database, volume)).status == "submitted"
    assert await locks_of(database) == {}


# ---------------------------------------------------------------- others' locks


async def test_a_row_in_the_lockset_is_held(sqlite_database: TemporaryDatabase) -> None:
    """A service that works under the lockset would be run over."""
    async with at_work(sqlite_database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        [row, *_] = await attachments_of(sqlite_database)
        async with get_locker("sqlite").lock_ctx("attachments", [row.id]):
            with pytest.raises(RelatedLockUnavailable):
                await item.lock_related(Attachment, Attachment.volume_id == item.id)
        assert (
            len(await item.lock_related(Attachment, Attachment.volume_id == item.id)) == ATTACHMENTS
        )


async def test_rows_that_refer_to_a_locked_one_can_be_inserted(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Locking a parent as a related row would hold up every insert of a child, and deadlock with
    some.
    """
    volume = await add_volume(postgresql_database)

    class Upwards(Pipeline[Attachment]):
        model = Attachment
        locks = (Volume,)

        def ready(self) -> Any:
            return Attachment.name == "0"

        async def process(self, item: Any) -> Apply:
            await item.lock_related(Volume, Volume.id == item.row.volume_id)
            async with asyncio.timeout(HANG_S_MAX):
                await add(postgresql_database, Attachment(volume_id=volume.id))
            return Apply()

    async with stepping(postgresql_database.session_factory, Upwards()) as steps:
        with faults_of(postgresql_database.engine) as faults:
            await steps.fetch_once()
            await steps.work_once()
        seen = [
            statement
            for _, statement in faults.sent
            if "FOR " in statement and statement.startswith("SELECT")
        ]
        assert counted(steps)["applied"] == 1
    assert seen
    assert all("FOR NO KEY UPDATE" in statement for statement in seen)


# ---------------------------------------------------------------- undeclared


async def test_an_undeclared_model_is_refused(database: TemporaryDatabase) -> None:
    """Rows would be locked that nobody looks after once their holder has died, and nobody would
    know what is missing.
    """

    class Undeclared(GatheringPipeline):
        locks = ()

    with heard_events() as heard:
        async with at_work(database, Undeclared()) as (steps, _):
            [item] = steps.queued
            with pytest.raises(
                ConfigurationError,
                match=r"Undeclared locks rows of Attachment.*`locks = \[Attachment\]`",
            ):
                await item.lock_related(Attachment, Attachment.name == "0")
            assert {row.lock_token for row in await attachments_of(database)} == {None}
            await steps.work_once()
    [failure] = heard.of(events.ItemFailed)
    assert "`locks = [Attachment]`" in failure.error
    assert await locks_of(database) == {}


async def test_rows_of_its_own_table_need_no_declaration(database: TemporaryDatabase) -> None:
    """They would be refused, and nobody can declare them; or cost each claim of every pipeline a
    transaction of its own.
    """
    other = Volume(status="other")
    async with at_work(database, GatheringPipeline()) as (steps, _):
        await add(database, other)
        [item] = steps.queued
        [locked] = await item.lock_related(Volume, Volume.status == "other")
        assert locked.id == other.id
        assert [table.model for table in steps.run.context.locker.tables] == [Attachment]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("chars", [200, 255])
async def test_a_shared_lock_has_a_name_however_long_the_key_is(
    database: TemporaryDatabase, chars: int
) -> None:
    """Rows with long natural keys could lock nothing that they share; or two of them would be
    told apart by nobody.
    """
    keys = ["k" * (chars - 1) + last for last in "ab"]

    class Named(DeclarativeBase):
        pass

    class Order(LockColumns, Named):
        __tablename__ = "orders"
        id: Mapped[str] = mapped_column(String(255), primary_key=True)

    class Site(LockColumns, Named):
        __tablename__ = "sites"
        id: Mapped[int] = mapped_column(primary_key=True)

    class OrderPipeline(Pipeline[Order]):
        model = Order
        locks = (Related(Site, on=true()),)

        def ready(self) -> Any:
            return true()

        async def process(self, item: Any) -> None:
            return None

    await database.create_tables(Named.metadata)
    await add(database, *(Order(id=key) for key in keys), Site(id=1), Site(id=2))
    async with stepping(database.session_factory, OrderPipeline()) as steps:
        items = await steps.fetch_once()
        owners = []
        for number, item in enumerate(items, start=1):
            [site] = await item.lock_related(Site, Site.id == number, shared=True)
            owners.append(site.lock_owner)
        with pytest.raises(RelatedLockUnavailable):
            await items[0].lock_related(Site, Site.id == 2, shared=True)
        await steps.work_all()
        assert counted(steps)["applied"] == 2
    assert len(set(owners)) == 2
    assert all(owner.startswith("OrderPipeline:") and len(owner) <= 255 for owner in owners)
    if chars == 200:
        assert owners == [f"OrderPipeline:{item.id}" for item in items]
