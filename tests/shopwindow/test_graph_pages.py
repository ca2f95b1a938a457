"""The design pages about graphs name tests that exist, and bounds that the code has."""

from __future__ import annotations

import re

import pytest

from .pages import DOCS, ROOT

PAGES = ("graph-conformance.md",)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def named_tests() -> list[tuple[str, str, str]]:
    """Return page, file and test, for each test that a page names."""
    return [
        (page, file, name)
        for page in PAGES
        for file, name in NAMED.findall((DOCS / "design" / page).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_tests_were_found(page: str) -> None:
    """The test below would compare nothing."""
    assert len([one for one in named_tests() if one[0] == page]) > 20


def test_named_tests_exist() -> None:
    """A page would promise a proof that was renamed, or taken away."""
    missing = []
    for page, file, name in named_tests():
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not re.search(rf"^\s*(?:async )?def {name}\(", text, re.MULTILINE):
            missing.append(f"{page}: {file}::{name}")
    assert missing == []
