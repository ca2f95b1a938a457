"""Outcomes that are too slow for their own transaction: how often they are tried, and how their
lease is kept meanwhile.

The trap this closes: a renewal skips a row that is locked, and a transaction that writes an outcome
has it locked. Tried again and again, such an outcome would lose its own lease.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rowlock.clock import sleep
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.settings import PipelineSettings

OVERRUNS_MAX = 2
"""An outcome that was so often out of time in its own transaction, with its row locked, failed:
it would need too long again.
"""
RENEWED_WITHIN_BEATS = 3
"""So many beats of the heartbeater let a renewal in."""


def time_for(item: PipelineItem[Any], settings: PipelineSettings) -> timedelta:
    """Return how long a transaction may have the row locked: trust must last until a renewal
    gets in behind it.
    """
    most_s = settings.database_timeout.total_seconds()
    left_s = item.remaining.total_seconds() - _renewed_within_s(settings)
    return timedelta(seconds=min(most_s, max(left_s, most_s / 2)))


async def let_a_renewal_in(item: PipelineItem[Any], settings: PipelineSettings) -> None:
    """Rest before the row is locked for long again, if trust does not last until that is over."""
    needed_s = settings.database_timeout.total_seconds() + _renewed_within_s(settings)
    if item.remaining.total_seconds() < needed_s:
        await sleep(_renewed_within_s(settings))


def _renewed_within_s(settings: PipelineSettings) -> float:
    return RENEWED_WITHIN_BEATS * settings.heartbeat_interval.total_seconds()
