"""``python -m rowlock errors``: every error is explained where it happened."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rowlock import ModelError
from rowlock.__main__ import main
from rowlock.cli import without_app
from rowlock.errors import RowlockError

from ..ground.test_errors import below
from .forked import RUN_S_MAX

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("error", list(below(RowlockError)), ids=lambda error: error.slug)
def test_every_error_is_explained(
    error: type[RowlockError], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command at the end of a message would answer that there is no such error."""
    for given in (error.__name__, error.slug):
        assert main(["errors", given]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"{error.slug}\n\n{error.__name__}")
        assert said.err == ""
    assert not {"**", "](", "`"} & set(said.out.split())


def test_the_command_of_a_message_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever pastes the end of a message would get an error of usage."""
    text = str(ModelError("text", model="Volume"))
    arguments = text.partition("python -m rowlock ")[2].removesuffix(")").split()
    assert main(arguments) == 0
    assert "What to do: the message names the column" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["docs/reference/errors.md#lease-lost", "rowlock.LeaseLost"])
def test_a_pasted_link_will_do(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A link or a name out of a traceback would have to be taken apart by hand."""
    assert main(["errors", given]) == 0
    assert capsys.readouterr().out.startswith("lease-lost\n")


def test_without_a_slug_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Who does not know the slug could not find it."""
    assert main(["errors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {one.slug for one in below(RowlockError)} == {line.split()[0] for line in lines}
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lease-losst", "did you mean lease-lost"),
        ("ModelErorr", "did you mean model-error"),
        ("xyz", "without SLUG"),
    ],
)
def test_an_unknown_slug_is_told(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen would print nothing, or a traceback."""
    assert main(["errors", given]) == 2
    assert said in capsys.readouterr().err


def test_a_wheel_has_the_page() -> None:
    """The command would work in a checkout alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    [(page, place)] = included.items()
    assert (ROOT / page).is_file()
    assert without_app.PAGES[0] == without_app.PACKAGE.parent / place


def test_an_installation_without_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would say what to do."""
    monkeypatch.setattr(without_app, "PAGES", (Path("/nowhere/errors.md"),))
    with pytest.raises(FileNotFoundError, match="install rowlock again"):
        without_app.page()


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """``rowlock errors | head`` would end in a page of Python."""
    command = f"{sys.executable} -m rowlock errors | true"
    ended = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
