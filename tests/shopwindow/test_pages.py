"""Every block of code in the README and the docs runs, or says that it is a fragment
(``pages.py`` has the rules).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .pages import (
    DOCS,
    ROOT,
    TUTORIAL,
    blocks_of,
    dialogue_of,
    files_of,
    name_of,
    pages,
    program_of,
    prose_of,
)
from .programs import STRICT, Run, missing_lines
from .run_page import PAGE

README = ROOT / "README.md"
MY_APP = Path(__file__).parent / "my_app.py"
FIRST_ROW = Path(__file__).parent / "first_row.py"
FIRST_LINES_MAX = 20
"""Most lines of code in the README, without imports and empty lines."""


def programs() -> list[Path]:
    return [page for page in pages() if (text := page.read_text(encoding="utf-8")) and is_run(text)]


def is_run(text: str) -> bool:
    return bool(program_of(text) or dialogue_of(text))


def lay_out(page: Path, folder: Path) -> None:
    """Write the files that a reader of the page has."""
    follows = page.is_relative_to(DOCS / "how-to") or page.name == "tutorial-testing.md"
    before = files_of(TUTORIAL.read_text(encoding="utf-8")) if follows else {}
    if page == README:
        before = {MY_APP.name: MY_APP.read_text(encoding="utf-8")}
    for name, text in (before | files_of(page.read_text(encoding="utf-8"))).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", programs(), ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, run: Run) -> None:
    """Somebody would paste code that does not work."""
    text = page.read_text(encoding="utf-8")
    lay_out(page, tmp_path)
    for command, expected in dialogue_of(text):
        program, *arguments = shlex.split(command)
        assert program == "python", f"{command}: only python is to be had everywhere"
        ended = run(*arguments, folder=tmp_path)
        assert ended.exit_code == 0, f"$ {command}\n{ended}"
        assert missing_lines(ended.output, expected) == [], f"$ {command}\n{ended}"
    if program_of(text):
        (tmp_path / "page.py.txt").write_text(program_of(text), encoding="utf-8")
        ended = run(PAGE, "page.py.txt", name_of(page), folder=tmp_path)
        assert ended.exit_code == 0, str(ended)


def test_readme_is_a_pipeline_that_works(tmp_path: Path, run: Run) -> None:
    """The first lines that a newcomer copies would leave the row as it was."""
    lay_out(README, tmp_path)
    (tmp_path / "readme.py").write_text(program_of(README.read_text(encoding="utf-8")), "utf-8")
    (tmp_path / FIRST_ROW.name).write_text(FIRST_ROW.read_text(encoding="utf-8"), "utf-8")
    ended = run(*STRICT, FIRST_ROW.name, folder=tmp_path)
    assert (ended.exit_code, ended.output) == (0, "['disk-1']\n"), str(ended)


def test_readme_is_short() -> None:
    """A newcomer would leave before the code has ended."""
    lines = program_of(README.read_text(encoding="utf-8")).splitlines()
    code = [line for line in lines if line and not line.startswith(("import ", "from "))]
    assert 0 < len(code) <= FIRST_LINES_MAX


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=name_of)
def test_guide_is_whole(page: Path) -> None:
    """A reader would get pieces of a program, or would not know which file they need."""
    text = page.read_text(encoding="utf-8")
    assert is_run(text)
    assert [block.line for block in blocks_of(text) if block.is_fragment] == []
    if set(files_of(TUTORIAL.read_text(encoding="utf-8"))) & files_wanted(text):
        assert "[tutorial](../tutorial.md)" in text


def files_wanted(text: str) -> set[str]:
    """Return the files from which the code on a page imports, as far as they could lie beside
    it.
    """
    code = "\n".join(block.text for block in blocks_of(text) if block.language == "python")
    return {f"{module}.py" for module in re.findall(r"^from (\w+) import", code, re.MULTILINE)}


def test_something_is_run() -> None:
    """The test above would pass pages on which it finds no code."""
    names = [name_of(page) for page in programs()]
    assert {"README.md", "docs/tutorial.md", "docs/how-to/hints.md"} <= set(names)


PLANTED = """\
# A page

```python
x = 1
```

<!-- fragment -->
```python
nonsense(
```

```python title="folder/file.py"
y = 2
```

```console
$ python folder/file.py
a ... c

$ python -V
```

```python
assert x == 1
await nothing()
```
"""


def test_blocks_are_told_apart() -> None:
    """A block would be skipped, or a fragment run."""
    assert program_of(PLANTED).split("\n") == [
        "",
        "",
        "",
        "x = 1",
        *[""] * 19,
        "assert x == 1",
        "await nothing()",
        "",
    ]
    assert files_of(PLANTED) == {"folder/file.py": "y = 2\n"}
    assert dialogue_of(PLANTED) == [("python folder/file.py", ["a ... c"]), ("python -V", [])]
    assert "nonsense" not in prose_of(PLANTED)
    assert "# A page" in prose_of(PLANTED)
    assert len(prose_of(PLANTED).split("\n")) == len(PLANTED.splitlines())


def test_open_block_is_refused() -> None:
    """The rest of a page would be taken for code, and not be run."""
    with pytest.raises(ValueError, match="line 3"):
        list(blocks_of("# A page\n\n```python\nx = 1\n"))


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [
        ("import asyncio\nassert await asyncio.sleep(0, 7) == 7", 0),
        ("x = 1", 0),
        ("assert False", 1),
        ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", 1),
    ],
)
def test_planted_program(program: str, exit_code: int, tmp_path: Path, run: Run) -> None:
    """A page whose code fails would pass."""
    (tmp_path / "page.py.txt").write_text(program, encoding="utf-8")
    assert run(PAGE, "page.py.txt", "planted.md", folder=tmp_path).exit_code == exit_code


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("a b c\nd", []),
        ("zero\na  c \none\nd\ntwo", []),
        ("d\na b c", ["d"]),
        ("a b\nd", ["a ... c", "d"]),
        ("a b c\nx d", ["d"]),
        ("", ["a ... c", "d"]),
    ],
)
def test_expected_lines(output: str, missing: list[str]) -> None:
    """A program that says something else than its page would pass."""
    assert missing_lines(output, ["a ... c", "d"]) == missing
