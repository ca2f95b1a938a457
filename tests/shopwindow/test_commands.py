"""The README has two commands that set everything up; they, and every other command on a page,
are to be had.
"""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from .pages import ROOT, blocks_of, name_of, pages
from .programs import Run

FIRST = [
    "python -m pip install -e . && python -m rowlock demo",
    'python -m pip install "nox[uv]" && python -m nox',
]
SHELLS = ("sh", "bash", "console")


def commands_of(text: str) -> list[str]:
    """Return the commands that a page has its reader type, each as one line."""
    lines = [
        line
        for block in blocks_of(text)
        if block.language in SHELLS
        for line in block.text.splitlines()
    ]
    dialogue = any(line.startswith("$ ") for line in lines)
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or not dialogue]
    return [line for line in typed if line and not line.startswith("#")]


def strange_commands(line: str) -> list[str]:
    """Find parts of a command line that call something which is neither here nor installed by
    the same line.
    """
    found, installed = [], set[str]()
    for part in line.split("&&"):
        words = shlex.split(part)
        match words:
            case ["python", "-m", "pip", "install", *names]:
                installed.update(name.partition("[")[0] for name in names)
            case ["python", "-m", module, *_] if module in installed or importlib.util.find_spec(
                module
            ):
                pass
            case ["python", file, *_] if file.endswith(".py"):
                pass
            case _:
                found.append(part.strip())
    return found


def test_the_readme_has_the_two_commands() -> None:
    """Somebody with a fresh machine would have to look for the way in."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(text) if block.language in SHELLS]
    assert [block.text.splitlines() for block in blocks] == [FIRST]


def test_continuous_integration_calls_the_same_command() -> None:
    """What a contributor runs would not be what is judged."""
    assert FIRST[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_are_to_be_had(page: Path) -> None:
    """Somebody would type a command that nobody has."""
    found = [
        strange
        for line in commands_of(page.read_text(encoding="utf-8"))
        for strange in strange_commands(line)
    ]
    assert found == []


def test_demo_is_a_command(tmp_path: Path, run: Run) -> None:
    """The first command of the README would end with an error of usage."""
    assert run("-m", "rowlock", "demo", "--help", folder=tmp_path).exit_code == 0


def test_package_can_be_installed_from_here() -> None:
    """The first command of the README would find no project."""
    assert (ROOT / "pyproject.toml").exists()
    assert (ROOT / "noxfile.py").exists()


@pytest.mark.parametrize(
    "line",
    ["make test", "python -m nobody_has_this", "python -m pip install nox && nox", "rowlock"],
)
def test_planted_command(line: str) -> None:
    """The law above would pass any command."""
    assert len(strange_commands(line)) == 1
