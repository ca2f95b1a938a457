"""The first transaction on a file that was never in WAL mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.dialects.sqlite.transactions import take_write_lock

from ..host import HANG_S_MAX


async def test_the_first_transaction_waits_for_a_writer(tmp_path: Path) -> None:
    """A host's first fetch would fail because a service writes to a file that is not in WAL mode
    yet.
    """
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 0}
    )
    async with engine.connect() as service, engine.connect() as ours:
        await service.exec_driver_sql("CREATE TABLE t (x)")
        await service.commit()
        await service.exec_driver_sql("BEGIN IMMEDIATE")
        await service.exec_driver_sql("INSERT INTO t VALUES (1)")
        with pytest.raises(
            OperationalError, match="BEGIN IMMEDIATE"
        ):  # which waits for `timeout`; the PRAGMA never does
            await take_write_lock(ours, 5)
        await service.commit()
        await take_write_lock(ours, 5)
        await ours.commit()
        assert (await ours.exec_driver_sql("PRAGMA journal_mode")).scalar_one() == "wal"
    await engine.dispose()


async def test_the_wait_is_bounded_whatever_the_host_has_set(tmp_path: Path) -> None:
    """A transaction would wait in the driver's thread, where nothing ends it, for as long as the
    host's busy timeout lasts.
    """
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 3600}
    )
    async with engine.connect() as service, engine.connect() as ours:
        for is_locked in (True, False):
            if is_locked:
                await service.exec_driver_sql("BEGIN IMMEDIATE")
                with pytest.raises(OperationalError, match="database is locked"):
                    await take_write_lock(ours, 0.01)
                await service.rollback()
            else:
                await take_write_lock(ours, 0.01)
            assert (await ours.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() == 3_600_000
            await ours.rollback()
    await engine.dispose()


async def test_a_shorter_wait_of_the_host_is_kept(tmp_path: Path) -> None:
    """A host that wants to hear at once that the file is locked would wait."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 0}
    )
    async with engine.connect() as service, engine.connect() as ours:
        await service.exec_driver_sql("BEGIN IMMEDIATE")
        async with asyncio.timeout(HANG_S_MAX):
            with pytest.raises(OperationalError, match="database is locked"):
                await take_write_lock(ours, 3600)
    await engine.dispose()
