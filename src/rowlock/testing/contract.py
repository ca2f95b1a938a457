"""What every pipeline should be tested for, to be inherited: eligibility and order, unlock on
success, stale token, contention.

A host writes a test class that says how its rows are made; the tests come with it. They are plain
``async def`` methods, for pytest-asyncio in auto mode or anyio's plugin.

    class TestVolumePipeline(PipelineContract[Volume]):
        pipeline_class = VolumePipeline

        def ready_row(self) -> Volume:
            return Volume(status="submitted")

        def unready_row(self) -> Volume:
            return Volume(status="active")

Rows that need others, because of a foreign key, say so in `prepare`; a pipeline with `locks` says
in `related_rows` which rows it locks. It needs a fixture `session_factory`, and a database that has
the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from inspect import isawaitable
from typing import Any, Generic
from unittest import SkipTest

from sqlalchemy import inspect, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Pipeline, PipelineItem, hold_rows
from rowlock.clock import utc_now
from rowlock.spi import LOCK_COLUMNS, LeasedTable, ModelT, check_session_factory
from rowlock.testing.stepping import stepping, tables_wanted

Sessions = async_sessionmaker[AsyncSession]


class PipelineContract(Generic[ModelT]):
    """The tests that a pipeline inherits.

    Attributes:
        pipeline_class: the pipeline under test.
        settings: keywords for its constructor.
    """

    pipeline_class: type[Pipeline[ModelT]]
    # Read only, and a ClassVar cannot be overridden by an instance.
    settings: dict[str, Any] = {}  # noqa: RUF012

    def ready_row(self) -> ModelT:
        """Return a new row, with a new key, that wants work and on which `process` succeeds; one
        test calls this twice.
        """
        raise TypeError(f"{type(self).__name__} must say what a ready row is: override ready_row()")

    def unready_row(self) -> ModelT:
        """Return a new row that wants no work."""
        raise TypeError(
            f"{type(self).__name__} must say what an unready row is: override unready_row()"
        )

    def related_rows(self, row: ModelT) -> Sequence[Any]:
        """Return new related rows, all of which `process` locks when it works on `row`, whose key
        is known by now.

        Needed where the pipeline declares `locks`: in one test another holder has the last of them.
        """
        raise TypeError(
            f"{type(self).__name__} must say which rows `process` locks: override related_rows(row)"
        )

    async def prepare(self, session: AsyncSession) -> None:
        """Add what rows need, such as parents that their foreign keys name; called once, in the
        transaction that adds them.
        """

    def build(self) -> Pipeline[ModelT]:
        """Return a new pipeline."""
        made: Pipeline[ModelT] = self._class()(**self.settings)
        return made

    async def test_claims_ready_rows_only(self, session_factory: Sessions) -> None:
        """A row that wants no work would be worked on, or one that does would be left."""
        ready, unready = self.ready_row(), self.unready_row()
        await self._add(session_factory, ready, unready)
        async with stepping(session_factory, self.build()) as steps:
            items = await steps.fetch_once()
        assert [item.id for item in items] == [_key(ready)]

    async def test_claims_the_oldest_first(self, session_factory: Sessions) -> None:
        """A row that waits for long would be overtaken for ever by fresher ones."""
        newer, older = self.ready_row(), self.ready_row()
        for row, age in ((newer, timedelta(days=1)), (older, timedelta(days=2))):
            name = "due_at" if LeasedTable.of(type(row)).has_schedule else "last_processed_at"
            setattr(row, name, utc_now() - age)
        await self._add(session_factory, newer, older)
        async with stepping(session_factory, self.build()) as steps:
            items = await steps.fetch_once()
        assert [item.id for item in items] == [_key(older), _key(newer)]

    async def test_leaves_a_row_that_somebody_holds(self, session_factory: Sessions) -> None:
        """Two replicas would work on one row."""
        await self._add(session_factory, self.ready_row())
        async with (
            stepping(session_factory, self.build()) as first,
            stepping(session_factory, self.build()) as second,
        ):
            assert len(await first.fetch_once()) == 1
            assert await second.fetch_once() == []

    async def test_unlocks_on_success(self, session_factory: Sessions) -> None:
        """A row would stay locked after its work is done."""
        row = self.ready_row()
        await self._add(session_factory, row)
        async with stepping(session_factory, self.build()) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert steps.run.context.counters.applied == 1, "process did not succeed on a ready row"
        after = await _read(session_factory, row)
        assert [getattr(after, name) for name in LOCK_COLUMNS[:3]] == [None, None, None]
        assert getattr(after, LOCK_COLUMNS[3]) is not None

    async def test_writes_nothing_under_a_stale_token(self, session_factory: Sessions) -> None:
        """A result would overwrite what the row's new holder does."""
        row = self.ready_row()
        await self._add(session_factory, row)
        pipeline = self.build()
        token = pipeline.leased.new_token()
        async with stepping(session_factory, _overtaken(pipeline, session_factory, token)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert steps.run.context.counters.applied == 0
            assert steps.run.context.counters.stale == 1
        after = await _read(session_factory, row)
        assert after.lock_token == token
        assert after.last_processed_at is None

    async def test_steps_back_while_somebody_holds_a_related_row(
        self, session_factory: Sessions
    ) -> None:
        """Work would go on without rows that others hold, keep some locked, or never be done."""
        pipeline, row = self.build(), self.ready_row()
        if not pipeline.declared_locks:
            raise SkipTest(f"{pipeline.name} declares no locks")
        await self._add(session_factory, row)
        related = self.related_rows(row)
        assert related, "related_rows() returned none"
        async with session_factory(expire_on_commit=False) as session, session.begin():
            session.add_all(related)
        async with stepping(session_factory, pipeline) as steps:
            counters = steps.run.context.counters
            async with hold_rows(session_factory, type(related[-1]), [_key(related[-1])]):
                await steps.fetch_once()
                await steps.work_once()
                assert counters.applied == 0, "process went on though somebody held a related row"
                assert await _locked(session_factory, row, *related[:-1]) == [], (
                    "a refusal left rows locked"
                )
            await _make_due(session_factory, row)
            items = await steps.fetch_once()
            assert [item.id for item in items] == [_key(row)], (
                "it did not come back for rows that are free now"
            )
            await steps.work_once()
            assert counters.applied == 1, "process did not succeed with all related rows free"
        assert await _locked(session_factory, row, *related) == []

    def _class(self) -> Any:
        found = getattr(self, "pipeline_class", None)
        if not (isinstance(found, type) and issubclass(found, Pipeline)):
            raise TypeError(
                f"{type(self).__name__} must say which class it tests, as in pipeline_class ="
                f" VolumePipeline; it has {found!r:.100}"
            )
        return found

    async def _add(self, session_factory: Sessions, *rows: object) -> None:
        if type(self).build is PipelineContract.build:
            self._class()
        for row in rows:
            if isinstance(row, type) or row is None:
                raise TypeError(
                    f"a row of {type(self).__name__} is a new instance, not {row!r:.100}"
                )
        check_session_factory(session_factory, LeasedTable.of(type(rows[0])))
        with tables_wanted():
            async with session_factory(expire_on_commit=False) as session, session.begin():
                await self.prepare(session)
                # Without a relationship between them, their order is unknown.
                await session.flush()
                session.add_all(rows)


def _overtaken(
    pipeline: Pipeline[ModelT], session_factory: Sessions, token: object
) -> Pipeline[ModelT]:
    """Return `pipeline`, whose rows another holder takes over while `process` runs."""
    process = pipeline.process

    async def process_and_be_overtaken(item: PipelineItem[ModelT]) -> Any:
        outcome = process(item)
        outcome = await outcome if isawaitable(outcome) else outcome
        taken = {pipeline.leased.column("lock_token"): token}
        await _write(session_factory, pipeline.leased, item.id, values=taken)
        return outcome

    pipeline.process = process_and_be_overtaken  # type: ignore[method-assign]
    return pipeline


async def _write(
    session_factory: Sessions, leased: LeasedTable, key: object, *, values: dict[Any, Any]
) -> None:
    async with session_factory.begin() as session:
        await session.execute(update(leased.table).where(leased.key == key).values(values))


async def _make_due(session_factory: Sessions, row: Any) -> None:
    leased = LeasedTable.of(type(row))
    # A row that stepped back may rest first, which is not under test here.
    due: dict[str, Any] = {"due_at": utc_now() - timedelta(days=1)}
    due = due if leased.has_schedule else {"last_processed_at": None}
    values = {leased.column(name): value for name, value in due.items()}
    await _write(session_factory, leased, _key(row), values=values)


async def _locked(session_factory: Sessions, *rows: object) -> list[tuple[str, Any]]:
    read = [(type(row).__name__, await _read(session_factory, row)) for row in rows]
    return [
        (name, _key(row))
        for name, row in read
        if row.lock_token is not None or row.lock_expires_at is not None
    ]


def _key(row: object) -> Any:
    return inspect(row).identity[0]


async def _read(session_factory: Sessions, row: object) -> Any:
    leased = LeasedTable.of(type(row))
    async with session_factory(expire_on_commit=False) as session:
        statement = select(leased.model).where(leased.attribute(leased.key_name) == _key(row))
        return (await session.scalars(statement)).one()
