"""Which span an attempt has, so that its entry can name it: handed over by whoever traces, by the
token of the claim. Bounded, and empty where nobody keeps a history.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED_MAX: Final = 20_000
"""Most attempts whose span is remembered; the one that began first is forgotten."""


class TraceIds:
    """The spans of the attempts that run.

    Attributes:
        is_wanted: whether somebody asks for them.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._by_token: OrderedDict[object, str] = OrderedDict()

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
