"""What all tests of graphs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find functions by the name that they have here, however pytest was
    started.
    """
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
