"""The files of pins are what mypy and pyright are to say of a host's code, line by line."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[2]
CHECKERS = {
    "mypy": ("-m", "mypy", "--strict", "--no-error-summary"),
    "pyright": ("-m", "pyright", "--outputjson"),
}
CHECK_S_MAX = 280.0


def refused_lines(text: str) -> list[int]:
    """Return the numbers of the lines that a type checker is to refuse."""
    lines = enumerate(text.splitlines(), start=1)
    return [number for number, line in lines if line.endswith("  # refused")]


def lines_found(checker: str, output: str) -> set[int]:
    """Return the numbers of the lines of pins with which a type checker finds fault."""
    if checker == "mypy":
        return {int(line) for line in re.findall(r"pins\.py:(\d+): error", output)}
    found = json.loads(output)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(
    "pins", ["pins.py", "graph_pins.py", "streams_pins.py", "stream_flow_pins.py"]
)
def test_a_type_checker_knows_what_the_host_writes(checker: str, pins: str) -> None:
    """A wrong key or value would be found when it is written to a row, or right code would be
    refused by the host's own checks.
    """
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: `python -m nox -s typing` brings it")
    ended = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(HERE / pins)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CHECK_S_MAX,
        check=False,
    )
    wanted = refused_lines((HERE / pins).read_text(encoding="utf-8"))
    assert len(wanted) > 10
    assert sorted(lines_found(checker, ended.stdout)) == wanted, ended.stdout + ended.stderr
