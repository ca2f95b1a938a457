"""What the tests of the judge begin with."""

from __future__ import annotations

import pytest

from .stories import Story


@pytest.fixture
def story() -> Story:
    """A main row, and one that may be locked with it."""
    story = Story()
    story.add("1")
    story.add("7", "disks", due_at=None, attempts=None)
    return story
