"""The first transaction on a file that was never in WAL mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.leases.dialects import sqlite


async def test_the_first_transaction_waits_for_a_writer(tmp_path: Path) -> None:
    """A host's first fetch would fail because a service writes to a file that is not in WAL mode yet."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 0})
    async with engine.connect() as service, engine.connect() as ours:
        await service.exec_driver_sql("CREATE TABLE t (x)")
        await service.commit()
        await service.exec_driver_sql("BEGIN IMMEDIATE")
        await service.exec_driver_sql("INSERT INTO t VALUES (1)")
        with pytest.raises(
            OperationalError, match="BEGIN IMMEDIATE"
        ):  # which waits for `timeout`; the PRAGMA never does
            await sqlite.begin_writing(ours)
        await service.commit()
        await sqlite.begin_writing(ours)
        await ours.commit()
        assert (await ours.exec_driver_sql("PRAGMA journal_mode")).scalar_one() == "wal"
    await engine.dispose()
