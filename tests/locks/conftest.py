"""What tests of locks share."""

from __future__ import annotations

import pytest

from rowlock.locks.locker import InMemoryLocker


@pytest.fixture
def locker() -> InMemoryLocker:
    return InMemoryLocker()
