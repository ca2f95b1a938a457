"""The judge finds every lie that is planted in the evidence, and finds nothing where there is
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.sql.expression import Executable

from rowlock import database_now
from rowlock.demo.command import DemoFinding, gather, judge
from rowlock.demo.host import CatalogueFiles, Document
from rowlock.demo.run import CHANGES, tables_in
from rowlock.testing import run_until_settled

CONTENTS = {"a.txt": b"two\nlines\n", "b.txt": b"no\x00last\rnewline\nhere", "empty": b""}
GONE = "gone"
"""A file that vanished before it was read."""
SECOND = Document.path == "b.txt"


async def judged(
    folder: Path, *lies: Executable, exit_codes: Sequence[int] = (0,)
) -> list[DemoFinding]:
    """Have the pipeline catalogue the files, plant lies in the tables, and return what the judge
    says.
    """
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    files = [*CONTENTS, GONE]
    async with tables_in(folder) as engine:
        async with AsyncSession(engine) as session, session.begin():
            session.add_all(Document(path=path) for path in files)
        assert await run_until_settled(async_sessionmaker(engine), [CatalogueFiles(folder)]) == len(
            files
        )
        async with engine.begin() as connection:
            for lie in lies:
                await connection.execute(lie)
        async with engine.connect() as connection:
            return judge(await gather(connection, folder, files), exit_codes)


def broken(findings: Sequence[DemoFinding]) -> list[str]:
    return [finding.text for finding in findings if finding.holds is False]


async def test_truth_is_free(tmp_path: Path) -> None:
    """A demo in which all went well would fail, as for a file that cannot be read."""
    findings = await judged(tmp_path)
    assert broken(findings) == []
    assert findings[0].text == "files in the catalogue: 4, 1 of them as unreadable"


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (
            update(Document).where(SECOND).values(sha256="of another file"),
            "results wrong, by a second count: 1 (b.txt)",
        ),
        (
            update(Document).where(SECOND).values(lines=7),
            "results wrong, by a second count: 1 (b.txt)",
        ),
        (
            update(Document).where(SECOND).values(last_processed_at=database_now()),
            "results written twice: 1",
        ),
        (update(Document).where(SECOND).values(status="new"), "files lost: 1"),
        (delete(Document).where(SECOND), "files lost: 1"),
        (text("DELETE FROM changes WHERE new_status = 'done'"), "files lost: 3"),
        (
            update(Document).where(SECOND).values(lock_expires_at=database_now()),
            "files still locked: 1 (b.txt)",
        ),
        (
            update(CHANGES)
            .where(CHANGES.c.new_lock_token.is_not(None))
            .values(
                old_lock_token=uuid4(), old_lock_expires_at=datetime.now(UTC) + timedelta(hours=1)
            ),
            "live leases taken",
        ),
    ],
)
async def test_planted_lie(tmp_path: Path, lie: Executable, found: str) -> None:
    """The demo would call a wrong, doubled or lost result right, or overlook a lease that
    was left, or taken from its holder.
    """
    assert any(found in line for line in broken(await judged(tmp_path, lie)))


@pytest.mark.parametrize(
    ("exit_codes", "found"),
    [((0, 0), []), ((0, -9), []), ((0, 1), ["replicas that failed: 1 of 2"])],
)
async def test_replica_that_fails_by_itself_is_no_success(
    tmp_path: Path, exit_codes: Sequence[int], found: list[str]
) -> None:
    """The demo would end well although a replica had died of an error; one that was killed is
    part of it.
    """
    assert broken(await judged(tmp_path, exit_codes=exit_codes)) == found
