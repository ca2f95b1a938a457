"""Tests of the values that lock columns take, as maps; that they reach the database is for
``leases/``.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from rowlock.rows.assignments import ColumnValues, UnlessChanged, without_onupdate
from rowlock.rows.lease_values import (
    due_values,
    leased_values,
    processed_values,
    renewed_values,
    reset_values,
    unlocked_values,
)
from rowlock.rows.leased_table import LeasedTable

from ..host import Run, Volume

NOON = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
TOKEN = uuid.uuid4()
VOLUMES, RUNS = LeasedTable.of(Volume), LeasedTable.of(Run)


def by_name(values: ColumnValues) -> dict[str, Any]:
    """Return the map with names for columns."""
    return {column.name: value for column, value in values.items()}


def test_leased() -> None:
    """A claim would leave one of the three lock columns as it was."""
    assert by_name(leased_values(VOLUMES, token=TOKEN, owner="P", expires_at=NOON)) == {
        "lock_token": TOKEN,
        "lock_owner": "P",
        "lock_expires_at": NOON,
    }


def test_renewed_writes_the_expiry_alone() -> None:
    """A heartbeat would overwrite a token or an owner that is no longer ours."""
    assert by_name(renewed_values(VOLUMES, expires_at=NOON)) == {"lock_expires_at": NOON}


def test_unlocked_clears_all_three() -> None:
    """A row would stay reserved for an owner that will not come back."""
    assert by_name(unlocked_values(VOLUMES)) == {
        "lock_token": None,
        "lock_owner": None,
        "lock_expires_at": None,
    }


def test_reset_keeps_the_owner() -> None:
    """The row's place would be lost to another pipeline."""
    assert by_name(reset_values(VOLUMES)) == {"lock_token": None, "lock_expires_at": None}


def test_processed_and_due_are_rules() -> None:
    """A stamp would go back, or a service's due time would be overwritten."""
    assert by_name(processed_values(VOLUMES, NOON)) == {"last_processed_at": NOON}
    assert by_name(due_values(RUNS, NOON, as_read=None)) == {
        "due_at": UnlessChanged(NOON, as_read=None)
    }


@pytest.mark.parametrize(
    "values",
    [
        leased_values(RUNS, token=TOKEN, owner="P", expires_at=NOON),
        renewed_values(RUNS, expires_at=NOON),
    ],
)
def test_leasing_pins_what_stamps_itself(values: ColumnValues) -> None:
    """Every claim and heartbeat would look like a change of the row."""
    assert by_name(values)["updated_at"] is Run.__table__.c.updated_at


def test_pinning_leaves_what_is_written() -> None:
    """A host that writes its `updated_at` would find it unchanged."""
    column = Run.__table__.c.updated_at
    assert without_onupdate(RUNS, {column: NOON}) == {column: NOON}
    assert without_onupdate(VOLUMES, {}) == {}
