"""Ranges of buckets as a condition of SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, ColumnElement, or_, true

from rowlock.streams.computing.buckets import BucketRange, merged
from rowlock.streams.computing.hashing import BUCKETS


def has_all(ranges: Iterable[BucketRange]) -> bool:
    """Return whether `ranges` have all buckets together."""
    return merged(ranges) == [(0, BUCKETS)]


def in_ranges(bucket: Column[Any], ranges: Iterable[BucketRange]) -> ColumnElement[bool]:
    """Return whether a bucket is in one of `ranges`; of all of them, nothing is asked."""
    parts = merged(ranges)
    if parts == [(0, BUCKETS)]:
        return true()
    return or_(*(bucket.between(lo, hi - 1) for lo, hi in parts))
