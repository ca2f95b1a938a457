"""The command line: what it refuses, and what its exit code means."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowlock.__main__ import main
from rowlock.demo import database, verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files."""
    place = tmp_path / "folder"
    place.mkdir()
    for name in ("a", "b", "c"):
        (place / name).write_text(f"this is {name}\n")
    return place


def demo(*argv: str) -> int | str | None:
    """Run the demo and return its exit code, whoever gives it."""
    try:
        return main(["demo", *argv])
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--rows", "0"], "'0' is not a whole number from 1 to"),
        (["--rows", "many"], "'many' is not a whole number"),
        (["--replicas", "99"], "'99' is not a whole number from 1 to 8"),
        (["--database", "mysql://host/name"], "leave it out for SQLite"),
        (["--database", "host and name"], "looks like postgresql://"),
        (["--database", "postgresql://nobody@127.0.0.1:1/nothing"], "cannot create the tables"),
    ],
)
def test_wrong_usage(folder: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option would be a traceback, or worse, be ignored."""
    assert demo(str(folder), *argv) == 2
    assert said in capsys.readouterr().err


def test_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder would look like a success over no files."""
    assert demo(str(tmp_path / "nowhere")) == 2
    assert "nowhere is no folder" in capsys.readouterr().err


def test_folder_without_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder would look like a success over no files."""
    assert demo(str(tmp_path)) == 2
    assert "has no files" in capsys.readouterr().err


def test_missing_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The plain install would end in a traceback of SQLAlchemy's."""
    monkeypatch.setattr(database, "find_spec", lambda name: None)
    assert demo(str(folder), "--database", "postgresql://host/name") == 2
    assert "pip install 'rowlock[postgresql]'" in capsys.readouterr().err


def test_password_is_not_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A password would stand in the log of a build."""
    demo(str(folder), "--database", "postgresql://nobody:secret@127.0.0.1:1/nothing")
    captured = capsys.readouterr()
    assert "secret" not in captured.out + captured.err


def test_small_folder_kills_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer's own folder of few files would end as a failure."""
    assert demo(str(folder), "--replicas", "2") == 0
    assert "nobody is killed" in capsys.readouterr().out


def test_wrong_result_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build that runs the demo would stay green whatever comes out."""
    honest = verdict.recount
    monkeypatch.setattr(verdict, "recount", lambda path: ("lie",) if path.name == "b" else honest(path))
    assert demo(str(folder), "--replicas", "1") == 1
    captured = capsys.readouterr()
    assert "BAD  wrong results" in captured.out
    assert "1 (b)" in captured.out
    assert "log of replica 1" in captured.err
