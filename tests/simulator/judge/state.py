"""Who holds what, followed change by change: what the checker looks things up in.

The one idea: a token is at home in the row where it was first seen. A pipeline claims its main row
under a fresh token and locks related rows under the same one, so the home is the main row. A
service that holds rows has no main row: its tokens are at home nowhere, and so are those that were
there before the historian came.

Not here: what is right and wrong (``checker.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.rows.lock_tokens import deaths_of, is_in_crowd, with_deaths

from .history import Change, RowState

Place: TypeAlias = tuple[str, str]
"""A table and a key as text."""

FREE = RowState()


@dataclass(slots=True, eq=False)
class TokenHistory:
    """What became of one token.

    Attributes:
        home: the main row; None if there is none, or nobody knows.
        owner: the name under which it was first seen.
        attempts: of its home when it was claimed.
        is_uncounted: whether its claim left the death before it uncounted.
        left: rows that it was on, and was taken from.
        swept: whether it was cleared from its home after its lease had ended, without an outcome.
        processed: the change that took it from its home with an outcome.
        replaced_by: the owner of the token that came after it in its home.
        home_is_deleted: whether its main row was deleted under it.
    """

    home: Place | None
    owner: str | None
    attempts: int | None = None
    is_uncounted: bool = False
    left: set[Place] = field(default_factory=set)
    swept: bool = False
    processed: Change | None = None
    replaced_by: str | None = None
    home_is_deleted: bool = False


class HistoryState:
    """What rows and tokens are at, after the changes that were entered.

    Attributes:
        rows: the state of every row that is there.
        tokens: every token that was ever seen.
        returning: who had reset a row before its present holder took it, and gets its name again.
        stamps: the time of outcomes by transaction, where transactions are known.
        claimed: the number of the last change that began a lease: no outcome is written in one
            transaction with such a change.
    """

    def __init__(self) -> None:
        self.rows: dict[Place, RowState] = {}
        self.tokens: dict[uuid.UUID, TokenHistory] = {}
        self.returning: dict[Place, str | None] = {}
        self.stamps: dict[int, datetime] = {}
        self.claimed = 0

    def home_state(self, token: uuid.UUID) -> RowState | None:
        """Return the state of the token's main row; None if it is not there."""
        history = self.tokens.get(token)
        return None if history is None or history.home is None else self.rows.get(history.home)

    def is_claim(self, change: Change) -> bool:
        """Whether a pipeline takes the row as its main row: under a token that nobody has seen
        before.
        """
        token = acquired_token(change)
        owner = change.after.lock_owner if change.after is not None else None
        return token is not None and token not in self.tokens and not is_composed(owner)

    def is_uncounted(self, token: uuid.UUID | None) -> bool:
        """Whether the claim that handed out the token left a death uncounted."""
        return token is not None and token in self.tokens and self.tokens[token].is_uncounted

    def enter(self, change: Change) -> None:
        place, before, after = place_of(change), change.before or FREE, change.after
        if before.lock_token is not None and (
            after is None or after.lock_token != before.lock_token
        ):
            self._leave(change, before.lock_token)
        if after is None:
            self.rows.pop(place, None)
            self.returning.pop(place, None)
            return
        if after.lock_token is None:
            self.returning[place] = after.lock_owner
        elif before.lock_token is not None and before.lock_token != after.lock_token:
            # Who takes over from a dead holder is told of no name to restore.
            self.returning[place] = None
        if after.lock_token is not None and after.lock_token not in self.tokens:
            claims = change.before is not None and not is_composed(after.lock_owner)
            history = TokenHistory(
                place if claims else None,
                after.lock_owner,
                after.attempts,
                is_uncounted=claims and is_uncounted(change),
            )
            self.tokens[after.lock_token] = history
            self.claimed = change.number
        is_of_its_time = is_outcome(change) and not is_stamped_ahead(change)
        if (
            is_of_its_time
            and change.transaction is not None
            and after.last_processed_at is not None
        ):
            self.stamps.setdefault(change.transaction, after.last_processed_at)
        self.rows[place] = after

    def _leave(self, change: Change, token: uuid.UUID) -> None:
        place, before, after = place_of(change), change.before or FREE, change.after
        history = self.tokens.setdefault(token, TokenHistory(None, before.lock_owner))
        history.left.add(place)
        if place != history.home:
            return
        history.home_is_deleted = after is None
        if after is not None:
            has_ended = before.lock_expires_at is not None and before.lock_expires_at <= change.at
            history.replaced_by = after.lock_owner if after.lock_token is not None else None
            history.swept = after.lock_token is None and has_ended and not is_outcome(change)
            history.processed = change if is_outcome(change) and after.lock_token is None else None


def place_of(change: Change) -> Place:
    return change.table, change.key


def whole_claims(changes: Iterable[Change]) -> list[Change]:
    """Return `changes` in which each claim is one: on PostgreSQL a claim that takes over from the
    dead counts them in a second statement, and a service may write to the row between the two.
    """
    found: list[Change] = []
    held: dict[tuple[Place, uuid.UUID], list[int]] = {}
    for change in changes:
        before, after, place = change.before, change.after, place_of(change)
        if _is_recount(change) and before is not None and before.lock_token is not None:
            counted = {
                name: getattr(after, name)
                for name in RowState.__slots__
                if getattr(after, name) != getattr(before, name)
            }
            for index in held.pop((place, before.lock_token), ()):
                found[index] = _counted(found[index], before.lock_token, counted)
            continue
        for token in {state.lock_token for state in (before, after) if state is not None}:
            if token is not None:
                held.setdefault((place, token), []).append(len(found))
        found.append(change)
    return found


def _counted(change: Change, token: uuid.UUID, counted: dict[str, Any]) -> Change:
    before, after = (
        replace(state, **counted) if state is not None and state.lock_token == token else state
        for state in (change.before, change.after)
    )
    return replace(change, before=before, after=after)


def _is_recount(change: Change) -> bool:
    before = None if change.before is None else change.before.lock_token
    after = None if change.after is None else change.after.lock_token
    if before is None or after is None or before == after:
        return False
    return with_deaths(before, deaths_of(after), in_crowd=is_in_crowd(after)) == after


def is_uncounted(change: Change) -> bool:
    """Whether a claim left the death of its own pipeline's holder uncounted.

    Where a second statement counts, its holder may die before that: then it works on none of the
    rows, and the next claim counts.
    """
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.lock_token is not None
        and before.lock_owner == after.lock_owner
        and deaths_of(after.lock_token) == deaths_of(before.lock_token)
        and after.attempts == before.attempts
    )


def acquired_token(change: Change) -> uuid.UUID | None:
    """Return the token under which the row is locked by this change, and was not before."""
    token = (
        change.after.lock_token if change.after is not None and change.before is not None else None
    )
    return token if change.before is not None and token != change.before.lock_token else None


def is_outcome(change: Change) -> bool:
    if change.before is None or change.after is None:
        return False
    return change.after.last_processed_at != change.before.last_processed_at


def is_stamped_ahead(change: Change) -> bool:
    """Whether the row was stamped at this very time, or later, since the clock was set back.

    An outcome of now leaves the stamp as it is, or goes on from it: then it is of this row alone.
    """
    last = None if change.before is None else change.before.last_processed_at
    return last is not None and last >= (change.transaction_at or change.at)


def is_composed(owner: str | None) -> bool:
    """Whether the name says for whom besides: that of a related row, or of a service."""
    return owner is not None and OWNER_SEPARATOR in owner
