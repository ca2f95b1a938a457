"""Histories written by hand, change by change, for tests of the judge."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from .checker import check
from .history import Change, RowState

START = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
LEASE_S = 30.0
MOMENT = timedelta(milliseconds=1)
"""By how much an outcome comes later than what was before it."""


class Story:
    """Rows and what is done with them; each step is one change, in a transaction of its own unless
    told otherwise.

    Attributes:
        changes: so far.
        now: the database's time; moved by `wait`.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.now = START
        self._rows: dict[tuple[str, str], RowState] = {}
        self._transaction = 0

    def wait(self, seconds: float) -> None:
        """Let time pass; a negative number sets the clock back."""
        self.now += timedelta(seconds=seconds)

    def state(self, key: str, table: str = "jobs") -> RowState:
        return self._rows[table, key]

    def add(self, key: str = "1", table: str = "jobs", **columns: Any) -> None:
        self._note(table, key, RowState(**{"due_at": self.now, "attempts": 0, **columns}))

    def change(
        self, key: str = "1", table: str = "jobs", *, together: bool = False, **columns: Any
    ) -> None:
        """Change columns of a row; `together` with the change before it."""
        self._note(table, key, replace(self._rows[table, key], **columns), together=together)

    def delete(self, key: str = "1", table: str = "jobs") -> None:
        self._note(table, key, None)

    def claim(
        self, key: str = "1", table: str = "jobs", *, owner: str = "P", **columns: Any
    ) -> uuid.UUID:
        """Lease a row as a pipeline does, or as a service if `owner` says so; count the attempt
        of a dead holder.
        """
        token, row = columns.pop("token", None) or uuid.uuid4(), self._rows[table, key]
        if row.lock_token is not None and row.lock_owner == owner:
            columns = {"attempts": (row.attempts or 0) + 1, **columns}
        self.take(token, key, table, **{"lock_owner": owner, **columns})
        return token

    def take(self, token: uuid.UUID, key: str, table: str = "jobs", **columns: Any) -> None:
        ends = self.now + timedelta(seconds=LEASE_S)
        self.change(
            key,
            table,
            **{"lock_token": token, "lock_owner": "P", "lock_expires_at": ends, **columns},
        )

    def renew(self, key: str = "1", table: str = "jobs", **options: Any) -> None:
        self.change(key, table, lock_expires_at=self.now + timedelta(seconds=LEASE_S), **options)

    def free(self, key: str = "1", table: str = "jobs", **columns: Any) -> None:
        self.change(
            key,
            table,
            **{"lock_token": None, "lock_owner": None, "lock_expires_at": None, **columns},
        )

    def apply(self, key: str = "1", table: str = "jobs", **columns: Any) -> None:
        """Write an outcome, a moment later unless it goes with the change before."""
        if not columns.get("together"):
            self.now += MOMENT
        last = self._rows[table, key].last_processed_at
        now = self.now if last is None else max(last, self.now)
        self.free(key, table, **{"last_processed_at": now, "attempts": 0, **columns})

    def broken(self, **options: Any) -> set[str]:
        violations = check(self.changes, **options)
        assert all(violation.table in str(violation) for violation in violations)
        return {violation.promise for violation in violations}

    def _note(
        self, table: str, key: str, after: RowState | None, *, together: bool = False
    ) -> None:
        self._transaction += not together
        before = self._rows.get((table, key))
        number = len(self.changes) + 1
        self.changes.append(
            Change(
                number, self.now, self.now, self.now, self._transaction, table, key, before, after
            )
        )
        if after is None:
            del self._rows[table, key]
        else:
            self._rows[table, key] = after
