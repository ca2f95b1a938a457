"""The command line: what it refuses, and what its exit code means."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from rowlock.__main__ import main
from rowlock.demo import command, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files, and with what is no file to be catalogued."""
    place = tmp_path / "folder"
    (place / "sub" / "__pycache__").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "sub/__pycache__/changes-meanwhile.pyc"):
        (place / name).write_text(f"this is {name}\n")
    (place / "link").symlink_to(place / "a")
    (place / "sub" / "round").symlink_to(place)
    (place / os.fsdecode(b"not-utf-8-\xff")).touch()
    with (place / "too-large").open("wb") as large:
        large.truncate(command.FILE_BYTES_MAX + 1)
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
    ],
)
def test_wrong_usage(
    folder: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option would be a traceback, or worse, be ignored."""
    assert demo(str(folder), *argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere", "nowhere is no folder"), ("empty", "has no files")]
)
def test_folder_without_files(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped or empty folder would look like a success over no files."""
    (tmp_path / "empty").mkdir()
    assert demo(str(tmp_path / name)) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_file_is_left_out(folder: Path) -> None:
    """A link in a newcomer's folder would lead round in circles, or a name fail the demo."""
    assert command._files_of(folder, 9) == ["a", "b", "sub/c"]


def test_wrong_result_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build that runs the demo would stay green whatever comes out."""
    monkeypatch.setattr(command, "replicas_on", partial(run.replicas_on, count=2))
    honest = command.count_again
    monkeypatch.setattr(
        command, "count_again", lambda path: ("lie",) if path.name == "a" else honest(path)
    )
    assert demo(str(folder), "--rows", "2") == 1
    captured = capsys.readouterr()
    assert "files in the catalogue: 2\n" in captured.out
    assert "BAD  results wrong, by a second count: 1 (a)\n" in captured.out
    assert "log of replica 1" in captured.err
