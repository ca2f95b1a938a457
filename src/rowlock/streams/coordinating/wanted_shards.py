"""How many shards a flow is to have that follows the number of its replicas: one decision, made in
one place, so that replicas which see each other at different times do not undo each other's splits.
"""

from __future__ import annotations

from rowlock.streams.shards.layout import DynamicShards


class WantedShards:
    """Decides for one flow, again and again.

    More are wanted at once. Fewer only when that has been so for a while: a replica that is
    started anew would otherwise have shards joined and split again.

    Args:
        shards: as the flow is declared.
        shrinks_after_s: for how long fewer shards must have been enough.
    """

    def __init__(self, shards: int | DynamicShards, *, shrinks_after_s: float) -> None:
        self._shards = shards
        self._shrinks_after_s = shrinks_after_s
        self._fewer_since: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether fewer would be enough, and are not wanted yet."""
        return self._fewer_since is not None

    def after(self, wanted: int | None, *, replicas: int, now: float) -> int | None:
        """Return how many shards there are to be; None: this is not found here, but told.

        Args:
            wanted: what was said last; None: nothing was.
            replicas: how many are there.
            now: the time, in seconds of a clock that never goes back.
        """
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
