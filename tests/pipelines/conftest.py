"""What several files of these tests share."""

from __future__ import annotations

import pytest

from rowlock.pipelines import context, pipeline

AHEAD_MAX = 80


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queues grow to 80 rows and not to 500: rows take most of the time of these tests."""
    for module in (context, pipeline):
        monkeypatch.setattr(module, "AHEAD_MAX", AHEAD_MAX)
