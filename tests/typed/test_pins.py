"""The files of pins are what mypy and pyright are to say of a host's code, line by line."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[2]
CHECKERS = {
    "mypy": ("-m", "mypy", "--strict", "--no-error-summary"),
    "pyright": ("-m", "pyright", "--outputjson"),
}
CHECK_S_MAX = 280.0
PINS = ("pins.py", "graph_pins.py", "streams_pins.py", "stream_flow_pins.py")


def refused_lines(text: str) -> list[int]:
    """Return the numbers of the lines that a type checker is to refuse."""
    lines = enumerate(text.splitlines(), start=1)
    return [number for number, line in lines if line.endswith("  # refused")]


@cache
def found(checker: str) -> set[tuple[str, int]]:
    """Return the lines of pins, by file, with which a type checker finds fault."""
    ended = subprocess.run(
        [sys.executable, *CHECKERS[checker], *(str(HERE / pins) for pins in PINS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CHECK_S_MAX,
        check=False,
    )
    if checker == "mypy":
        lines = re.findall(r"(\w*pins\.py):(\d+): error", ended.stdout)
        return {(name, int(line)) for name, line in lines}
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in json.loads(ended.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("pins", PINS)
def test_a_type_checker_knows_what_the_host_writes(checker: str, pins: str) -> None:
    """A wrong key or value would be found when it is written to a row, or right code would be
    refused by the host's own checks.
    """
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: `python -m nox -s typing` brings it")
    wanted = refused_lines((HERE / pins).read_text(encoding="utf-8"))
    assert len(wanted) > 10
    assert sorted(line for name, line in found(checker) if name == pins) == wanted
