"""Journals outlive their writers."""

from __future__ import annotations

from pathlib import Path

from rowlock.demo.journal import JournalWriter, read_journal


def test_unfinished_line_is_no_fact(tmp_path: Path) -> None:
    """A journal that is read while it is written, or whose writer was killed, could not be read."""
    path = tmp_path / "journal"
    with JournalWriter(path) as writer:
        writer.hinted(3)
    with path.open("a") as file:
        file.write('["started", 4, "tok')
    journal = read_journal(path)
    assert list(journal.hinted) == [3]
    assert journal.starts == []


def test_fact_is_there_at_once(tmp_path: Path) -> None:
    """What a replica did just before a kill would be forgotten."""
    path = tmp_path / "journal"
    with JournalWriter(path) as writer:
        writer.hinted(3)
        assert list(read_journal(path).hinted) == [3]


def test_replica_that_noted_nothing(tmp_path: Path) -> None:
    """A replica that was killed while it started would end the demo."""
    assert read_journal(tmp_path / "nothing").starts == []
