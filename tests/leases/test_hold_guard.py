"""The guard of held rows and the end of the block: what the service sees, and who is told."""

from __future__ import annotations

import pytest

from rowlock import PipelineError, hold_rows, pipeline_hinter
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from ..pipelines.scenes import add, change, is_free, read


async def test_the_guard_shows_what_is_there(database: TemporaryDatabase) -> None:
    """A service that had read the row before it was held would compute from what it was."""
    [row] = await add(database, Volume())
    async with database.session_factory() as session:
        before = await session.get(Volume, row.id)
        await session.commit()
        await change(database, row, size_gb=50)
        async with hold_rows(database.session_factory, Volume, [row.id]) as held:
            [fresh] = await held.guard(session)
            assert fresh is before
            assert fresh.size_gb == 50
            await session.commit()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_transaction_that_is_still_open_is_an_error(
    database: TemporaryDatabase, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is committed after the block was not written under the lease; and letting go, which
    would wait for that transaction, is left to the end of the lease, however the block ends.
    """
    [row] = await add(database, Volume())
    async with database.session_factory() as session:

        async def serve() -> None:
            async with hold_rows(database.session_factory, Volume, [row.id]) as held:
                await held.guard(session)
                if fails:
                    raise PipelineError("no")

        with pytest.raises(PipelineError) as raised:
            await serve()
        await session.rollback()
    assert str(raised.value).startswith("no" if fails else "a guarded transaction is still open")
    assert not is_free(await read(database, row))
    assert caplog.records == []


async def test_pipelines_are_hinted_when_the_rows_are_free(database: TemporaryDatabase) -> None:
    """A hint that came while the rows were held has found nothing; they would wait for a poll."""
    [row] = await add(database, Volume())
    hinted: list[bool] = []

    def look() -> None:
        hinted.append(True)

    pipeline_hinter.attach("Volume", look)
    try:
        async with hold_rows(database.session_factory, Volume, [row.id]):
            assert not hinted
    finally:
        pipeline_hinter.detach("Volume", look)
    assert hinted == [True]


async def test_a_service_may_guard_again_after_it_has_deleted_a_row(
    database: TemporaryDatabase,
) -> None:
    """A service that deletes one of two rows could not go on with the other."""
    rows = [Volume(), Volume()]
    await add(database, *rows)
    async with hold_rows(database.session_factory, Volume, [row.id for row in rows]) as held:
        for row in rows:
            async with database.session_factory.begin() as session:
                await held.guard(session)
                await session.delete(await session.get(Volume, row.id))
