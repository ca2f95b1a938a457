"""``rowlock export``: the files of the package, as they are."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from rowlock.__main__ import main

GRAFANA = files("rowlock.telemetry").joinpath("grafana")


def test_files_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A dashboard or a rule would be cut, or have a line of ours in it."""
    assert main(["export", "grafana"]) == 0
    board = capsys.readouterr().out
    assert json.loads(board)["title"] == "rowlock"
    assert board == GRAFANA.joinpath("rowlock.json").read_text(encoding="utf-8")
    assert main(["export", "alerts"]) == 0
    assert capsys.readouterr().out == GRAFANA.joinpath("alerts.yaml").read_text(encoding="utf-8")


def test_another_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error would write an empty file of rules."""
    with pytest.raises(SystemExit) as ended:
        main(["export", "alarms"])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""
