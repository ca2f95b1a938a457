"""Which span an attempt has, so that its entry can name it: handed over by whoever traces, by the
token of the claim. Bounded, and empty where nobody keeps a history.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import WeakSet

REMEMBERED_MAX: Final = 20_000
"""Most attempts whose span is remembered; the one that began first is forgotten."""


class TraceIds:
    """The spans of the attempts that run."""

    def __init__(self) -> None:
        # A process may have several histories, and one of them may end before the others.
        self._readers: WeakSet[object] = WeakSet()
        self._by_token: OrderedDict[object, str] = OrderedDict()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody asks for them."""
        return bool(self._readers)

    def add_reader(self, reader: object) -> None:
        """Remember spans from now on, for `reader`; the same one may say so again."""
        self._readers.add(reader)

    def remove_reader(self, reader: object) -> None:
        """Remember none for `reader` any more, and none at all behind the last one."""
        self._readers.discard(reader)
        if not self.is_wanted:
            self._by_token.clear()

    def remember(self, lock_token: object, trace_id: str) -> None:
        """Say which trace an attempt belongs to, if somebody wants to know."""
        if not self.is_wanted:
            return
        self._by_token[lock_token] = trace_id
        if len(self._by_token) > REMEMBERED_MAX:
            self._by_token.popitem(last=False)

    def get(self, lock_token: object) -> str | None:
        """Return the trace of an attempt."""
        return self._by_token.get(lock_token)

    def forget(self, lock_token: object) -> str | None:
        """Return the trace of an attempt of which nothing more will be told."""
        return self._by_token.pop(lock_token, None) if self._by_token else None


TRACE_IDS: Final = TraceIds()
"""Those of this process."""
