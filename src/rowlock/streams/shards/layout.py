"""Layouts: how the buckets are divided among shards, how many shards there are to be, and which
replica is to hold which shard.

The number of shards is a power of two, so a shard is split in halves and joined with its sibling.
Where it follows the number of replicas, one place decides it, so that replicas which see each other
at different times do not undo each other's splits.

No plan of who holds what is stored: leases decide that. Each replica computes the same assignment
from the same rows, releases what is another's, and claims what is its own; a row that is out of
date delays that and breaks nothing.

Source: dynamic sharding of Feldera's distributed design, with the least movement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rowlock.stream_errors import ShardsMissingError
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, is_part

SHARDS_MAX = 1024
"""Most shards of a flow."""


@dataclass(frozen=True, slots=True)
class DynamicShards:
    """The number of shards follows the number of replicas.

    Attributes:
        k: the share of a replica is within this much of the average, as a part of the average.

    Raises:
        ValueError: `k` is not between 1 / `SHARDS_MAX` and 1.
    """

    k: float = 0.1

    def __post_init__(self) -> None:
        if not 1 / SHARDS_MAX <= self.k < 1:
            msg = f"k is {self.k}; it must be at least 1 / {SHARDS_MAX} and below 1"
            raise ValueError(msg)

    def shards_for(self, replicas: int) -> int:
        """Return the next power of two of ``replicas / k``, `SHARDS_MAX` at most."""
        shards = 1
        while shards * self.k < replicas and shards < SHARDS_MAX:
            shards *= 2
        return shards


def check_number(shards: int) -> int:
    """Return a number of shards: a power of two up to `SHARDS_MAX`."""
    if not isinstance(shards, int) or isinstance(shards, bool):
        msg = f"the number of shards is an int, such as 8, or DynamicShards(), not {shards!r:.100}"
        raise TypeError(msg)
    if not 1 <= shards <= SHARDS_MAX or shards & (shards - 1):
        near = 1 << max(1, min(shards, SHARDS_MAX)).bit_length()
        msg = (
            f"{shards} shards: the number must be a power of two up to {SHARDS_MAX}, such as"
            f" {min(near, SHARDS_MAX)}, since shards are split in halves"
        )
        raise ValueError(msg)
    return shards


def even_layout(shards: int) -> list[BucketRange]:
    width = BUCKETS // check_number(shards)
    return [BucketRange(lo, lo + width) for lo in range(0, BUCKETS, width)]


def check_layout(flow: str, ranges: Iterable[Any]) -> None:
    """Check that each bucket is in one range."""
    # What has a `lo` and `hi` that are no range has no bucket.
    gaps, twice, reached = [], [], 0
    pairs = sorted((each.lo, each.hi) for each in ranges if is_part(each.lo, each.hi))
    for lo, hi in [*pairs, (BUCKETS, BUCKETS)]:
        if lo > reached:
            gaps.append((reached, lo))
        elif lo < reached:
            twice.append((lo, min(hi, reached)))
        reached = max(reached, hi)
    if gaps or twice:
        raise ShardsMissingError(flow=flow, missing=tuple(gaps), twice=tuple(twice))


def siblings(at: Mapping[BucketRange, int], wanted: int) -> list[tuple[BucketRange, BucketRange]]:
    """Return the pairs of siblings to be joined: narrow, and `at` one step."""
    width = BUCKETS // check_number(wanted)
    pairs = [(each, each.sibling) for each in at if each.width < width]
    return [(one, other) for one, other in pairs if one < other and at[one] == at.get(other)]


def fair_shares(held: Mapping[str, int], total: int) -> dict[str, int]:
    """Return how many of `total` each replica is to hold; the numbers differ by one at most."""
    # Those that hold the most get the one more, so that the fewest move; among equals, the first by
    # id. A replica that holds none is new: it gets its part of each of the others, and nothing
    # moves between these.
    if not held:
        return {}
    least, more = divmod(total, len(held))
    order = sorted(held, key=lambda replica: (-held[replica], replica))
    return {replica: least + (index < more) for index, replica in enumerate(order)}


def assigned(
    holders: Mapping[BucketRange, str | None],
    replicas: Collection[str],
    *,
    wanted: int,
    newest: Collection[str] = (),
) -> dict[BucketRange, str]:
    """Return the replica that is to hold each shard."""
    # The shares differ by one at most, and as few shards as possible move. Where shards are to be
    # joined, those of one later shard count as one and come to one replica. While shards are to be
    # split, none that is held moves: the halves can be divided better. Nor does one while replicas
    # run two versions of the host's code, `newest` being those of the newest: what an old replica
    # held comes to a new one when the old one ends, and has moved once when the last old one has
    # ended.
    width = BUCKETS // check_number(wanted)
    if not replicas:
        return {}
    blocks: dict[int, list[BucketRange]] = defaultdict(list)
    for each in sorted(holders):
        blocks[each.lo - each.lo % max(width, each.width)].append(each)
    votes = {lo: _votes(block, holders, replicas) for lo, block in blocks.items()}
    is_to_split = any(each.width > width for each in holders)
    if newest:
        chosen = _added(votes, replicas, newest)
    else:
        chosen = _chosen(votes, replicas, is_fixed=is_to_split)
    return {each: chosen[lo] for lo, block in blocks.items() for each in block}


def _votes(
    block: Sequence[BucketRange],
    holders: Mapping[BucketRange, str | None],
    replicas: Collection[str],
) -> Counter[str]:
    votes: Counter[str] = Counter()
    for each in block:
        holder = holders[each]
        if holder is not None and holder in replicas:
            votes[holder] += each.width
    return votes


def _chosen(
    votes: Mapping[int, Counter[str]], replicas: Collection[str], *, is_fixed: bool
) -> dict[int, str]:
    kept = _kept(votes, replicas)
    counts = {replica: len(kept[replica]) for replica in replicas}
    shares = fair_shares(counts, len(votes))
    if is_fixed:
        shares = {replica: max(share, counts[replica]) for replica, share in shares.items()}
    chosen = {lo: replica for replica in replicas for lo in kept[replica][: shares[replica]]}
    missing = {
        replica: shares[replica] - min(shares[replica], counts[replica]) for replica in shares
    }
    for lo in (each for each in votes if each not in chosen):
        # Rather one that has a part of it; then the one that lacks the most.
        replica = max(
            sorted(missing), key=lambda one: (missing[one] > 0, votes[lo][one], missing[one])
        )
        chosen[lo] = replica
        missing[replica] -= 1
    return chosen


def _added(
    votes: Mapping[int, Counter[str]], replicas: Collection[str], newest: Collection[str]
) -> dict[int, str]:
    """Leave each block where it is; others go to those with the fewest, then the newest."""
    kept = _kept(votes, replicas)
    counts = {replica: len(kept[replica]) for replica in replicas}
    chosen = {lo: replica for replica in replicas for lo in kept[replica]}
    for lo in (each for each in votes if each not in chosen):
        replica = min(counts, key=lambda one: (counts[one], one not in newest, one))
        chosen[lo] = replica
        counts[replica] += 1
    return chosen


def _kept(votes: Mapping[int, Counter[str]], replicas: Collection[str]) -> dict[str, list[int]]:
    """Return the blocks that each replica has most of, those first of which it has the most."""
    kept: dict[str, list[int]] = {replica: [] for replica in replicas}
    # Blocks that one replica has alone first, since of the others there is a choice.
    for lo in sorted(votes, key=lambda lo: (len(votes[lo]), lo)):
        if votes[lo]:
            most = max(votes[lo].values())
            first = min(
                (replica for replica, part in votes[lo].items() if part == most),
                key=lambda replica: (len(kept[replica]), replica),
            )
            kept[first].append(lo)
    for replica, blocks in kept.items():
        blocks.sort(key=lambda lo: (-votes[lo][replica], lo))
    return kept


class WantedShards:
    """Decides for one flow, again and again, how many shards there are to be."""

    # More are wanted at once. Fewer only when that has been so for a while: a replica that is
    # started anew would otherwise have shards joined and split again.

    def __init__(self, shards: int | DynamicShards, *, shrinks_after_s: float) -> None:
        self._shards = shards
        self._shrinks_after_s = shrinks_after_s
        self._fewer_since: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether fewer would be enough, and are not wanted yet."""
        return self._fewer_since is not None

    def after(self, wanted: int | None, *, replicas: int, now: float) -> int | None:
        """Return how many shards there are to be, `wanted` so far; None if not decided here."""
        if not isinstance(self._shards, DynamicShards) or not replicas:
            # Without a replica at work there is no rate to judge by.
            return None
        enough = self._shards.shards_for(replicas)
        if wanted is None or enough >= wanted:
            self._fewer_since = None
            return enough
        if self._fewer_since is None:
            self._fewer_since = now
        if now - self._fewer_since < self._shrinks_after_s:
            return wanted
        self._fewer_since = None
        return enough
