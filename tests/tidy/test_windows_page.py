"""The table of rules of the windows cannot rot: every test that it names is there."""

from __future__ import annotations

from .reading import ROOT
from .test_reliability_page import dead_tests

PAGE = ROOT / "docs" / "design" / "windows.md"


def test_named_tests_of_windows_exist() -> None:
    """A rule would be shown as tested by a test that was renamed or taken out."""
    assert dead_tests(PAGE.read_text(encoding="utf-8")) == []
