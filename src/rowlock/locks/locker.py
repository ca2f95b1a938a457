"""Who locks keys in this process, and by which way: `get_locker` knows it from the name of the
database.

On SQLite keys are locked in memory, which holds within one process and one event loop. On
PostgreSQL rows are locked in the database, so here nothing is: code written against a
`ResourceLocker` runs on both.

The one idea: locks belong to the event loop in which they were taken. What a closed loop left
behind is forgotten, not waited for; and the set of a namespace is forgotten, too, once no key of it
is locked or awaited and nothing refers to it.

Release after the commit, never before: enter `lock_ctx` outside the session's block, or on an
``AsyncExitStack`` around both. On SQLite begin a new transaction once the lock is yours, or you
read a snapshot from before.

Not here: leases, which outlive the process.

Source: the locksets of dstack, whose waiters polled and, cancelled, released the holder's keys.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakValueDictionary

from rowlock.dialects import DialectPart
from rowlock.errors import LockWaitTimeout
from rowlock.locks.lockset import Lockset, LocksetLock, LocksetStatistics


class ResourceLocker(ABC):
    """Locks resources by namespace and key; a namespace is usually the name of a table."""

    @abstractmethod
    def get_lockset(self, namespace: str) -> tuple[AbstractAsyncContextManager[None], Lockset]:
        """Return the set of locked keys, and the lock inside which to look at it and add to it."""

    @abstractmethod
    def lock_ctx(
        self, namespace: str, keys: Iterable[Hashable], *, timeout: timedelta | float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Hold all of `keys` inside the block. Order and repetition do not matter; the lock is not
        re-entrant.

        Args:
            namespace: what the keys are keys of.
            keys: hashable, of one type per namespace; none at all is allowed.
            timeout: longest wait, a number being seconds; 0 asks once, None waits for as long as it
                takes.

        Raises:
            LockWaitTimeout: not all were free in time; none is held.
            Refusal: too many wait in this namespace already.
        """

    @abstractmethod
    def statistics(self) -> tuple[LocksetStatistics, ...]:
        """Return the numbers of each namespace in which a key is held or waited for."""


@dataclass(slots=True)
class _LocksetsOfLoop:
    """The locksets of one event loop, alive while referred to, held or waited for."""

    known: WeakValueDictionary[str, Lockset] = field(default_factory=WeakValueDictionary)
    busy: dict[str, Lockset] = field(default_factory=dict)


class InMemoryLocker(ResourceLocker):
    """Locks within one process and one event loop; lockers are unaware of each other."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, _LocksetsOfLoop] = {}

    def __repr__(self) -> str:
        return f"<InMemoryLocker {list(self.statistics())}>"

    def get_lockset(self, namespace: str) -> tuple[LocksetLock, Lockset]:
        lockset = self._lockset(namespace)
        return LocksetLock(lockset), lockset

    @asynccontextmanager
    async def lock_ctx(
        self, namespace: str, keys: Iterable[Hashable], *, timeout: timedelta | float | None = None
    ) -> AsyncIterator[None]:
        ordered, timeout_s = in_order(keys), _seconds(timeout)
        lockset = self._lockset(namespace)
        request = lockset.request(ordered)
        try:
            if not await request.wait_for_grant(timeout_s):
                raise LockWaitTimeout(namespace=namespace, keys=ordered, timeout_s=timeout_s or 0.0)
            yield
        finally:
            lockset.leave(request)

    def statistics(self) -> tuple[LocksetStatistics, ...]:
        """All event loops that are not closed."""
        open_loops = [locksets for loop, locksets in self._by_loop.items() if not loop.is_closed()]
        return tuple(
            lockset.statistics() for locksets in open_loops for lockset in locksets.busy.values()
        )

    def _lockset(self, namespace: str) -> Lockset:
        locksets = self._locksets_of_running_loop()
        lockset = locksets.known.get(namespace)
        if lockset is None:
            lockset = locksets.known[namespace] = Lockset(namespace, locksets.busy)
        return lockset

    def _locksets_of_running_loop(self) -> _LocksetsOfLoop:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]
            self._by_loop[loop] = _LocksetsOfLoop()
        return self._by_loop[loop]


class _NoLockset(Lockset):
    """Always empty: the database locks the rows."""

    def add(self, key: Hashable) -> None:
        """Do nothing."""

    def remove(self, key: Hashable) -> None:
        """Do nothing."""

    def discard(self, key: Hashable) -> None:
        """Do nothing."""


class InDatabaseLocker(ResourceLocker):
    """Locks nothing in this process: the rows are locked, ``with_for_update(key_share=True)``."""

    def get_lockset(self, namespace: str) -> tuple[nullcontext[None], Lockset]:
        return nullcontext(), _NoLockset(namespace, {})

    def lock_ctx(
        self, namespace: str, keys: Iterable[Hashable], *, timeout: timedelta | float | None = None
    ) -> nullcontext[None]:
        """Bad keys and timeouts are refused as on SQLite."""
        in_order(keys)
        _seconds(timeout)
        return nullcontext()

    def statistics(self) -> tuple[LocksetStatistics, ...]:
        return ()


LOCKERS: DialectPart[ResourceLocker] = DialectPart("locker", ResourceLocker)
"""This process's locker for each database."""


def get_locker(dialect_name: str) -> ResourceLocker:
    """Return this process's locker for SQLAlchemy's name of the database, such as
    ``engine.dialect.name``.

    Raises:
        UnsupportedDialectError: rowlock does not know the database.
    """
    return LOCKERS.on(dialect_name)


def in_order(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Return `keys`, each once, in the order of all holders; `TypeError` for a single key."""
    if isinstance(keys, str | bytes):
        raise TypeError(
            f"keys must be a collection of keys, not the single key {keys!r}; pass [{keys!r}]"
        )
    return tuple(sorted(dict.fromkeys(keys), key=_place))


def _place(key: Hashable) -> tuple[str, int, str]:
    # Keys of one namespace need not be comparable with each other; their types' names, numbers and
    # texts are.
    return type(key).__name__, key if isinstance(key, int) else 0, repr(key)


def _seconds(timeout: timedelta | float | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"timeout must be None or at least 0 seconds, not {timeout!r}")
    return seconds
