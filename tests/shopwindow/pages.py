"""The pages that are shown to people, and the code on them.

The one idea: a page is a program. Its code blocks, in order, are run in a folder of their own:

- a block with a title (```` ```python title="volumes.py" ````) is written to the file of that name;
- a ``console`` block is a dialogue: each line after ``$ `` is run, and the lines below it are what
  must be seen, in this order (``...`` in a line stands for anything);
- every other ``python`` block is a part of the page's program, which runs at the end and may use
  ``await``;
- a block below the comment ``<!-- fragment -->`` is only shown, and so is one in any other
  language.

A page in ``docs/how-to/``, and the testing tutorial, find the files of the tutorial in their
folder, as a reader does who has just worked through it. The README finds ``my_app.py``, which
stands for the reader's own application.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
FRAGMENT = "<!-- fragment -->"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)(?P<options>.*)$")
_TITLE = re.compile(r'\btitle="(?P<title>[^"]+)"')


class Block(NamedTuple):
    """One block of code: `line` is that of its first line of code, counted from 1."""

    language: str
    title: str | None
    is_fragment: bool
    line: int
    text: str


def pages() -> list[Path]:
    """Return the README and every page of the docs."""
    return [
        ROOT / "README.md",
        *sorted(path for path in DOCS.rglob("*.md") if "changelog.d" not in path.parts),
    ]


def name_of(path: Path) -> str:
    """Return the path of a page as a reader writes it."""
    return path.relative_to(ROOT).as_posix()


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of code on a page.

    Raises:
        ValueError: a block is not closed.
    """
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        closing = fence["indent"] + "```"
        if closing not in lines[number:]:
            raise ValueError(f"the block that begins in line {number} is not closed")
        end = lines.index(closing, number)
        title = _TITLE.search(fence["options"])
        yield Block(
            language=fence["language"],
            title=None if title is None else title["title"],
            is_fragment=number >= 2 and lines[number - 2].strip() == FRAGMENT,
            line=number + 1,
            text="".join(line.removeprefix(fence["indent"]) + "\n" for line in lines[number:end]),
        )
        number = end + 1


def prose_of(text: str) -> str:
    """Return a page without its blocks of code, line for line."""
    lines = text.splitlines()
    for block in blocks_of(text):
        length = len(block.text.splitlines())
        lines[block.line - 2 : block.line + length] = [""] * (length + 2)
    return "\n".join(lines)


def program_of(text: str) -> str:
    """Return the page's program, each line at the number that it has on the page, so that a
    traceback leads there.
    """
    program = [""] * len(text.splitlines())
    for block in blocks_of(text):
        if block.language == "python" and block.title is None and not block.is_fragment:
            lines = block.text.splitlines()
            program[block.line - 1 : block.line - 1 + len(lines)] = lines
    return "\n".join(program) if any(program) else ""


def files_of(text: str) -> dict[str, str]:
    """Return the files that a page has its reader write."""
    return {
        block.title: block.text
        for block in blocks_of(text)
        if block.title is not None and not block.is_fragment
    }


def dialogue_of(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands that a page has its reader type, and what is seen after each."""
    dialogue: list[tuple[str, list[str]]] = []
    for block in blocks_of(text):
        if block.language == "console" and not block.is_fragment:
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    dialogue.append((line.removeprefix("$ "), []))
                elif line:
                    dialogue[-1][1].append(line)
    return dialogue
