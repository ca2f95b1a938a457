"""Hypothesis strategies of these tests: lease states of a row, and settings. What is drawn is
valid.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

from rowlock import SettingsKeywords
from rowlock.clock import JITTER
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing.database_clock import DEFAULT_START

# ---------------------------------------------------------------- lease states


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A state in which a claim may find a row.

    Attributes:
        name: ``free``, ``held``, ``expired``, ``reset`` or ``parked``.
        is_due: whether its time has come.
        is_claimable: whether the owner that it was drawn for may claim it, if it is ready and no
            main row awaits it.
        values: what the lock and schedule columns hold, for the constructor of the row.
    """

    name: str
    is_due: bool
    is_claimable: bool
    values: Mapping[str, Any]


def lease_states(
    model: type[Any],
    *,
    owner: str,
    now: datetime = DEFAULT_START,
    interval: timedelta = timedelta(seconds=15),
) -> st.SearchStrategy[LeaseState]:
    """Draw lease states of a row: free, held, expired, reset or parked; due or not; by this owner
    or another pipeline.

    Args:
        model: the host's mapped class.
        owner: the name of the pipeline that is to claim the row.
        now: the database's time, such as ``database.clock.now``; at that moment the states are what
            they are called.
        interval: the pipeline's `min_processing_interval`, by which rows without `ScheduleColumns`
            are due.
    """
    leased = LeasedTable.of(model)
    names = ["free", "held", "expired", "reset", *(["parked"] if leased.has_schedule else [])]
    return st.builds(
        _lease_state,
        st.sampled_from(names),
        is_due=st.booleans(),
        is_mine=st.booleans(),
        away=st.integers(2, 3600).map(lambda seconds: timedelta(seconds=seconds)),
        token=st.uuids(version=4),
        about=st.just((leased, owner, now, interval)),
    )


def _lease_state(
    name: str,
    *,
    is_due: bool,
    is_mine: bool,
    away: timedelta,
    token: uuid.UUID,
    about: tuple[LeasedTable, str, datetime, timedelta],
) -> LeaseState:
    leased, owner, now, interval = about
    values: dict[str, Any] = {}
    if name in {"held", "expired", "reset"}:
        values["lock_owner"] = owner if is_mine else f"Not{owner}"
    if name in {"held", "expired"}:
        values["lock_token"] = leased.as_token(token)
        values["lock_expires_at"] = now + away if name == "held" else now - away
    if leased.has_schedule:
        values["due_at"] = now - away if is_due else now + away
        values["parked_at"] = now - away if name == "parked" else None
    else:
        # A row that was reset comes back sooner than others, so it is due for certain only after
        # the interval.
        values["last_processed_at"] = (
            now - interval - away if is_due else now - min(interval, away) / 2
        )
    if name == "reset":
        # Reserved for its owner a moment ago, or for so long that nobody is kept away any more.
        is_kept = away < _KEPT_NO_MORE and (leased.has_schedule or not is_due)
        values["last_processed_at"] = now if is_kept else now - interval - _KEPT_NO_MORE
        is_due = is_due if leased.has_schedule else not is_kept
        is_open = is_mine or not is_kept
    else:
        is_open = name in {"free", "expired"}
    return LeaseState(name, is_due, is_open and is_due, values)


_KEPT_NO_MORE: Final = timedelta(minutes=30)


# ---------------------------------------------------------------- settings


@st.composite
def pipeline_settings(draw: st.DrawFn) -> SettingsKeywords:
    """Draw settings that keep the timing budget, as keywords for a pipeline."""
    lock_timeout_s = draw(st.floats(0.5, 3600))
    trigger_s = lock_timeout_s * draw(st.floats(0.05, 0.95))
    # Margin, two late beats and one renewal share what is left of a lease when its renewal is
    # triggered.
    share = st.floats(0.02, 0.3)
    margin_s, beats_s, renewal_s = (trigger_s * draw(share) for _ in range(3))
    lower, upper = sorted(draw(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10))))
    retry_s, retry_most_s = sorted(draw(st.tuples(st.floats(0.01, 60), st.floats(0.01, 3600))))
    return {
        "workers_num": draw(st.integers(1, 8)),
        "queue_lower_limit_factor": lower,
        "queue_upper_limit_factor": upper,
        "min_processing_interval": draw(st.floats(0, 60)),
        "lock_timeout": lock_timeout_s,
        "heartbeat_trigger": trigger_s,
        "fetch_delays": tuple(draw(st.lists(st.floats(0.01, 30), min_size=1, max_size=4))),
        "lease_margin": margin_s,
        "heartbeat_interval": beats_s / (2 * (1 + JITTER)),
        "renew_timeout": renewal_s,
        "retry_delay": retry_s,
        "retry_delay_max": retry_most_s,
        "max_attempts": draw(st.integers(1, 5)),
        "orphaned_after": lock_timeout_s * draw(st.floats(1.5, 20)),
    }
