"""Messages from one stage to a later one, as columns.

The one idea: their order does not depend on the layout. Those of a handler by key are sent in the
order of the keys that it had, by bucket; and shards have their buckets in order, so the messages of
all shards, one shard behind the other, are in one order whatever the shards. A batch handler has no
key when it sends, so its messages are put in the order of their own keys and texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rowlock.streams.computing.hashing import bucket_of


class SentMessages(NamedTuple):
    """Messages to one later stage, as columns.

    Attributes:
        keys: the texts of their keys.
        buckets: of their keys.
        texts: their own.
    """

    keys: list[str]
    buckets: list[int]
    texts: list[str]

    def at(self, indices: Sequence[int]) -> SentMessages:
        """Return some of the messages."""
        return SentMessages(
            [self.keys[index] for index in indices],
            [self.buckets[index] for index in indices],
            [self.texts[index] for index in indices],
        )

    def extend(self, others: SentMessages) -> None:
        """Add others behind these."""
        self.keys.extend(others.keys)
        self.buckets.extend(others.buckets)
        self.texts.extend(others.texts)

    def in_one_order(self, is_batch: bool) -> SentMessages:
        """Return what one stage of all shards sent, as the shards are in order, in an order that
        does not depend on the layout.

        Args:
            is_batch: the handler of that stage gets batches.
        """
        if not is_batch:
            # Those to one bucket stay in the order of the keys for which they were sent.
            return self.at(sorted(range(len(self.keys)), key=self.buckets.__getitem__))
        # No key has a zero in it, so two of these texts are in the order of such pairs.
        pairs = [f"{key}\0{text}" for key, text in zip(self.keys, self.texts, strict=True)]
        return self.at(sorted(range(len(pairs)), key=pairs.__getitem__))


class Messages:
    """Messages to one stage, while a handler sends them.

    Attributes:
        keys: the texts of their keys.
        texts: their own.
    """

    __slots__ = ("_runs", "keys", "texts")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.texts: list[str] = []
        self._runs: list[tuple[str, int]] = []

    def add(self, sender: str | None, keys: Sequence[str], texts: Sequence[str]) -> None:
        """Add messages that were sent for the key `sender`; in a batch there is none."""
        if sender is not None and (not self._runs or self._runs[-1][0] != sender):
            self._runs.append((sender, len(self.keys)))
        self.keys += keys
        self.texts += texts

    def cut_to(self, count: int) -> None:
        """Drop all but the first ones."""
        del self.keys[count:], self.texts[count:]
        while self._runs and self._runs[-1][1] >= count:
            self._runs.pop()

    def ordered(self, is_batch: bool) -> SentMessages:
        """Return all of them: those of a handler by key in the order of the keys that it had.

        Args:
            is_batch: a batch handler sent them, which had none.
        """
        buckets = {key: bucket_of(key) for key in dict.fromkeys(self.keys)}
        sent = SentMessages(self.keys, [buckets[key] for key in self.keys], self.texts)
        return sent if is_batch else sent.at(self._by_sender())

    def _by_sender(self) -> list[int]:
        ends = [("", len(self.keys))]
        runs = [
            (bucket_of(sender), sender, begin, end)
            for (sender, begin), (_, end) in pairwise([*self._runs, *ends])
        ]
        return [index for _, _, begin, end in sorted(runs) for index in range(begin, end)]
