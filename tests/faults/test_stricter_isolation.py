"""Replicas on engines with REPEATABLE READ and SERIALIZABLE."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import Apply, PipelineManager, events
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Attachment, Base, RecordingPipeline, Run, Volume, heard_events
from .patience import QUICK

ROWS = 24
LEDGER = 1


class LedgerPipeline(RecordingPipeline):
    """Locks what all runs share, and adds to one row that all of them write.

    Attributes:
        done: keys of the runs whose work was done.
    """

    model = Run
    locks = (Attachment,)

    def __init__(self, done: list[Any], **settings: Any) -> None:
        super().__init__(answer=self._work, **settings)
        self.done = done

    def ready(self) -> Any:
        """Queued runs want work; the ledger is a run that is not queued."""
        return Run.status == "queued"

    async def _work(self, item: Any) -> Apply:
        [shared] = await item.lock_related(
            Attachment, Attachment.name == f"shared {item.id % 4}", shared=True
        )
        self.done.append(item.id)

        async def also(session: Any, now: Any) -> None:
            entries = await session.scalar(select(Run.result).where(Run.id == LEDGER))
            await session.execute(
                update(Run).where(Run.id == LEDGER).values(result=[*entries, item.id])
            )

        return Apply({"status": "done"}, related={shared: {"status": f"by {item.id}"}}, also=also)


@pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_each_row_is_worked_on_once_and_applied_once(
    postgresql_database: TemporaryDatabase, isolation_level: str
) -> None:
    """A serialization failure would lose an outcome, write what `also` writes twice, or have the
    work done again.
    """
    database, done = postgresql_database, []
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(volume := Volume(status="other"))
        await session.flush()
        session.add_all(
            Attachment(volume_id=volume.id, name=f"shared {n}", status="other") for n in range(4)
        )
        session.add(Run(id=LEDGER, status="ledger", result=[]))
        session.add_all(Run(id=100 + number) for number in range(ROWS))
    managers = [
        PipelineManager(
            async_sessionmaker(database.create_engine(isolation_level=isolation_level)),
            [LedgerPipeline(done, workers_num=4, **QUICK)],
        )
        for _ in range(2)
    ]
    with heard_events() as heard:
        async with managers[0], managers[1]:
            async with asyncio.timeout(HANG_S_MAX):
                while (
                    len(
                        applied := [
                            one for one in heard.of(events.ItemApplied) if one.outcome == "Apply"
                        ]
                    )
                    < ROWS
                ):
                    await heard.wait_for(
                        events.ItemApplied, count=len(heard.of(events.ItemApplied)) + 1
                    )
    counters = sum(
        (Counter(manager.statistics()["LedgerPipeline"].counters) for manager in managers),
        Counter(),
    )
    keys = [100 + number for number in range(ROWS)]
    assert sorted(event.row_id for event in applied) == keys
    async with database.session_factory() as session:
        assert sorted(await session.scalar(select(Run.result).where(Run.id == LEDGER))) == keys
        left = select(Run.id).where(
            Run.id != LEDGER,
            (Run.status != "done") | (Run.attempts != 0) | Run.lock_token.is_not(None),
        )
        assert (await session.scalars(left)).all() == []
        assert (await session.scalars(select(Attachment.lock_token))).all() == [None] * 4
    assert sorted(done) == keys or counters["leases_lost"]
    assert (counters["retried"], counters["stale"]) == (0, 0)
