"""The design pages about streams: each rule names its proofs, and these exist."""

from __future__ import annotations

import pytest

from .named_tests import missing_tests, named_tests, rows_below
from .pages import DOCS

PAGES = ("streams.md",)


@pytest.mark.parametrize("page", PAGES)
def test_tests_were_found(page: str) -> None:
    """The test below would compare nothing."""
    assert len(named_tests(DOCS / "design" / page)) > 20


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page: str) -> None:
    """A page would promise a proof that was renamed, or taken away."""
    assert missing_tests(DOCS / "design" / page) == []


def test_each_rule_has_its_proof() -> None:
    """A rule would stand in the docs that no test keeps."""
    text = (DOCS / "design" / "streams.md").read_text(encoding="utf-8")
    rows = rows_below("rules", text)
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert all("::test_" in row[2] for row in rows)
