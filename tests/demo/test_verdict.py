"""The judge finds every lie that is planted in the evidence, and finds nothing where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from sqlalchemy import insert, text, update

from rowlock.demo.display import PlainDisplay
from rowlock.demo.documents import DONE, NEW, UNREADABLE, Base, Document, read_and_count
from rowlock.demo.history import begin_history
from rowlock.demo.journal import Journal, Start
from rowlock.demo.play import DemoRun
from rowlock.demo.verdict import Evidence, Finding, all_hold, gather, judge
from rowlock.testing import TemporaryDatabase

FILES = ["a.txt", "b.txt"]


def broken(findings: Sequence[Finding]) -> list[str]:
    """Return the names of what does not hold."""
    assert all_hold(findings) == all(finding.holds is not False for finding in findings)
    return [finding.name for finding in findings if finding.holds is False]


async def judged(database: TemporaryDatabase, folder: Path, *lies: str) -> list[str]:
    """Catalogue `FILES` truly, plant lies in the tables, and return what is found to be broken."""
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await begin_history(connection)
        for number, name in enumerate(FILES, start=1):
            (folder / name).write_text(f"{name} has\nwords")
            counts = read_and_count(folder / name)
            await connection.execute(insert(Document).values(id=number, path=name))
            true_result = {"status": DONE, **asdict(counts)}
            await connection.execute(update(Document).where(Document.id == number).values(true_result))
        for lie in lies:
            await connection.execute(text(lie))
        play = DemoRun(database.engine, [], FILES, PlainDisplay(), kills=False)
        return broken(judge(await gather(connection, folder, play)))


async def test_truth_is_free(database: TemporaryDatabase, tmp_path: Path) -> None:
    """A demo in which all went well would fail."""
    assert await judged(database, tmp_path) == []


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("UPDATE documents SET sha256 = 'of something else' WHERE id = 2", "wrong results"),
        ("UPDATE documents SET words = words + 1 WHERE id = 2", "wrong results"),
        ("UPDATE documents SET status = status WHERE id = 2", "double applies"),
        ("INSERT INTO history (document_id, status) VALUES (1, 'done')", "double applies"),
        ("DELETE FROM documents WHERE id = 2", "lost"),
        ("DELETE FROM history WHERE document_id = 2", "lost"),
        ("UPDATE documents SET lock_" + "token = '00000000000000000000000000000001' WHERE id = 2", "still leased"),
    ],
)
async def test_planted_lie(database: TemporaryDatabase, tmp_path: Path, lie: str, found: str) -> None:
    """The demo would call a wrong, doubled or lost result right."""
    names = await judged(database, tmp_path, lie)
    assert len(names) == 1
    assert names[0].startswith(found)


async def test_row_that_went_back_to_new_is_lost(database: TemporaryDatabase, tmp_path: Path) -> None:
    """A result that vanished again would count as there."""
    names = await judged(database, tmp_path, "UPDATE documents SET status = 'new' WHERE id = 2")
    assert "lost" in names


def evidence(**changes: object) -> Evidence:
    """One file, settled once, with changes."""
    result = (UNREADABLE, None, None, None, None)
    sound: dict[str, object] = {
        "files": ["a"],
        "ids": {"a": 1},
        "results": {"a": result},
        "recounted": {"a": result},
        "applied": {1: 1},
    }
    return Evidence(**(sound | changes))  # type: ignore[arg-type]


def journal(*tokens: str) -> Journal:
    """A journal in which document 1 was begun under each token."""
    return Journal([Start(1, token, 1.0) for token in tokens])


DEAD, ALIVE = True, False


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"failed": ["replica 1"]}, ["replicas that failed"]),
        ({"wants_kill": True}, ["killed with -9"]),
        ({"files": [], "results": {}}, ["files"]),
        (
            {"journals": [(journal("x"), DEAD)], "applied": {}, "results": {"a": (NEW, None, None, None, None)}},
            ["lost", "recovered after the kill"],
        ),
    ],
)
def test_planted_failure(changes: dict[str, object], found: list[str]) -> None:
    """The demo would end well although it had not shown what it promised."""
    assert broken(judge(evidence(**changes))) == found


@pytest.mark.parametrize(
    ("journals", "recovered"),
    [
        ([(journal("x"), DEAD), (journal("y"), ALIVE)], "1 of 1"),
        ([(journal("x"), DEAD), (journal(), ALIVE)], "0 of 0"),  # settled by the dead one itself, before it died
    ],
)
def test_recovered_is_what_others_began_again(journals: list[tuple[Journal, bool]], recovered: str) -> None:
    """Rows that the dead replica had settled would be counted as rescued."""
    findings = {finding.name: finding.value for finding in judge(evidence(journals=journals, wants_kill=True))}
    assert findings["recovered after the kill"].startswith(recovered)


def test_second_start_is_told() -> None:
    """The demo would claim that work runs exactly once."""
    findings = {finding.name: finding.value for finding in judge(evidence(journals=[(journal("x", "y"), ALIVE)]))}
    assert findings["started more than once"].startswith("1 ")


def test_pickup_is_measured_from_the_hint_to_the_first_start() -> None:
    """A takeover would look like a slow pickup, or rows that were never hinted would improve the figure."""
    first, second, third = Start(1, "x", 10.25), Start(1, "y", 20.0), Start(1, "z", 30.0)
    not_hinted = Start(2, "w", 10.0)
    notes = Journal([second, first, third, not_hinted], hinted={1: 10.0})
    values = [finding.value for finding in judge(evidence(journals=[(notes, ALIVE)]))]
    assert "p50 250.0 ms, p99 250.0 ms" in values
