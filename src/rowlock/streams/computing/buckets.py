"""Ranges of buckets, as a shard has one; and the table from a bucket to its range.

Every range is a half, a half of a half, and so on, of all buckets. So a range has one sibling, and
a split and a later join lead back to where they began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rowlock.streams.computing.hashing import BUCKETS

TABLES_KEPT: Final = 8
"""How many tables of owners are kept: one for each division of the shards of late."""
NOT_HERE = -1
"""In the table of owners: a bucket that is in none of the ranges."""


def is_part(lo: int, hi: int) -> bool:
    """Return whether buckets from `lo` to one below `hi` are what repeated halving leads to."""
    width = hi - lo
    return 0 <= lo < hi <= BUCKETS and not width & (width - 1) and not lo % width


@dataclass(frozen=True, slots=True, order=True)
class BucketRange:
    """Buckets from `lo` to one below `hi`.

    Raises:
        ValueError: the range is no part of all buckets that repeated halving leads to.
    """

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not is_part(self.lo, self.hi):
            msg = f"buckets {self.lo} to {self.hi} are no part that repeated halving leads to"
            raise ValueError(msg)

    def __contains__(self, bucket: int) -> bool:
        return self.lo <= bucket < self.hi

    def __str__(self) -> str:
        return f"{self.lo}..{self.hi}"

    @property
    def width(self) -> int:
        """How many buckets are in it."""
        return self.hi - self.lo

    @property
    def parent(self) -> BucketRange:
        """The range of which this is one half.

        Raises:
            ValueError: it has all buckets.
        """
        lo = self.lo - self.lo % (2 * self.width)
        return BucketRange(lo, lo + 2 * self.width)

    @property
    def sibling(self) -> BucketRange:
        """The other half of `parent`.

        Raises:
            ValueError: it has all buckets.
        """
        lower, upper = self.parent.halves
        return upper if self == lower else lower

    @property
    def halves(self) -> tuple[BucketRange, BucketRange]:
        """Its lower and its upper half.

        Raises:
            ValueError: it is a single bucket.
        """
        middle = self.lo + self.width // 2
        return BucketRange(self.lo, middle), BucketRange(middle, self.hi)


@lru_cache(maxsize=TABLES_KEPT)
def owner_table(ranges: tuple[BucketRange, ...]) -> Sequence[int]:
    """Return for each bucket the index of the range that has it; `NOT_HERE` where none has.

    Args:
        ranges: no bucket is in two of them.
    """
    table = [NOT_HERE] * BUCKETS
    for index, each in enumerate(ranges):
        table[each.lo : each.hi] = [index] * each.width
    return table


def merged(ranges: Iterable[BucketRange]) -> list[tuple[int, int]]:
    """Return the buckets of `ranges` as the fewest pairs of a first one and that behind the last,
    ascending.
    """
    pairs: list[tuple[int, int]] = []
    for each in sorted(ranges):
        if pairs and pairs[-1][1] == each.lo:
            pairs[-1] = (pairs[-1][0], each.hi)
        else:
            pairs.append((each.lo, each.hi))
    return pairs
