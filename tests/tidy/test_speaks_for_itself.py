"""What is committed speaks of the project alone: no place that exists on one machine only, no paper
that a reader cannot open.

The patterns are spelt so that they do not find themselves.
"""

from __future__ import annotations

import re

import pytest

from .reading import ROOT, committed_files

TOP_LEVEL = frozenset(
    {
        "LICENSE",
        "README.md",
        "alembic",
        "docs",
        "examples",
        "noxfile.py",
        "pyproject.toml",
        "src",
        "tests",
    }
)
"""The fixed top level, beside files and folders whose name begins with a dot."""
PLACES = re.compile(
    r"(?<![\w.~])/(?:wor[k]|op[t]|roo[t]|hom[e]/\w+|User[s]/\w+)(?:/|\b)|\b[A-Z]:[\\]User[s]\b"
)
PAPERS = re.compile(
    r"\bthe (?:contrac[t]|founding enginee[r])\b|\bsee[d] 0\d\d\b|\bthe see[d]'s\b|\bissu[e]"
    r" #?\d+\b|\bAI agent[s]?\b",
    re.IGNORECASE,
)
TEXT = frozenset(
    {
        "",
        ".cfg",
        ".css",
        ".html",
        ".ini",
        ".json",
        ".mako",
        ".md",
        ".py",
        ".sh",
        ".toml",
        ".txt",
        ".yaml",
        ".yml",
    }
)


def strange_words(path: str, text: str) -> list[str]:
    """Find places and papers of somebody's machine in a file."""
    lines = enumerate(text.splitlines(), start=1)
    return [
        f"{path}:{number}: {found.group()!r} means nothing to a reader of the repository"
        for number, line in lines
        for pattern in (PLACES, PAPERS)
        for found in pattern.finditer(line)
    ]


def strange_tops(paths: list[str]) -> list[str]:
    """Find what lies at the top level and is not of the house."""
    tops = {path.split("/")[0] for path in paths}
    return sorted(top for top in tops - TOP_LEVEL if not top.startswith("."))


def test_no_word_of_elsewhere() -> None:
    """A reader would be sent to a place that is not there."""
    found = []
    for path in committed_files():
        if path.suffix in TEXT:
            found += strange_words(
                path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            )
    assert found == []


def test_top_level_is_as_drawn() -> None:
    """The front of the house would fill with things that nobody put away."""
    assert strange_tops([path.relative_to(ROOT).as_posix() for path in committed_files()]) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/main/src",
        "lies in /" + "opt/things",
        "cd /" + "root",
        "a/b = '/" + "home/somebody/x'",
        "open('/" + "Users/somebody')",
        "as the " + "contract says",
        "Seed " + "003 says",
        "the " + "seed's default",
        "closes issue" + " #2",
        "issue" + " 2",
    ],
)
def test_planted_word(text: str) -> None:
    """The law above would pass any word."""
    assert len(strange_words("planted.md", text)) == 1


def test_planted_top() -> None:
    """The law above would pass anything at the top."""
    assert strange_tops(["mkdocs.yml", ".ci/run", "src/rowlock/clock.py", "notes/a.md"]) == [
        "mkdocs.yml",
        "notes",
    ]
