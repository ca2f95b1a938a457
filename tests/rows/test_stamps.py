"""Stamps of outcomes: which attempt a row's last time is from."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from rowlock.rows.database_time import STAMP_SPREAD, STAMP_STEP, stamp_after

NOW = datetime(2031, 5, 17, 12, tzinfo=UTC)


def test_a_stamp_is_the_time_of_its_transaction() -> None:
    """Rows that were written together would be told apart by their time."""
    assert stamp_after(NOW, None, uuid.uuid4()) == NOW


def test_attempts_differ() -> None:
    """An attempt that wrote nothing would find its stamp in the row, and be told that it was
    applied.
    """
    stamps = {stamp_after(NOW, NOW, uuid.UUID(int=number)) for number in range(100)}
    assert len(stamps) > 95
    assert min(stamps) >= NOW + STAMP_STEP
    assert max(stamps) < NOW + STAMP_STEP + STAMP_SPREAD


def test_an_attempt_has_one_stamp() -> None:
    """A second try, or one of another process, would not know what the first has written."""
    token = "4f5a1d0e-9f6b-4a53-8d5c-0f1f6f4e2a11"
    known = NOW + timedelta(microseconds=87_888)
    assert stamp_after(NOW, NOW, token) == stamp_after(NOW, NOW, uuid.UUID(token)) == known
