"""Locks on keys within this process: on SQLite in memory, for one event loop; on PostgreSQL rows
are locked in the database, so here nothing is. Code against a `ResourceLocker` runs on both.

What a closed loop left behind is forgotten, not waited for; and so is the set of a namespace once
no key of it is locked or awaited and nothing refers to it.

The one idea: a `LockRequest` gets all its keys or none, once none of them is held or wanted by an
earlier request. So no request holds some keys while waiting for others, and none overtakes on a key
that both want. `lock_ctx` is granted nothing while the lock of the set is held.

Release after the commit, never before: enter `lock_ctx` outside the session's block, or on an
``AsyncExitStack`` around both. On SQLite begin a new transaction once the lock is yours, or you
read a snapshot from before.

Source: the locksets of dstack, whose waiters polled and, cancelled, released the holder's keys.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from weakref import WeakValueDictionary

from rowlock.dialects import DialectPart
from rowlock.errors import LockWaitTimeout, Refusal

WAITERS_MAX = 10_000
"""Most requests that may wait in one namespace."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class LockRequest:
    """A waiter for `keys`, or for the lock of the set."""

    keys: tuple[Hashable, ...] = ()
    granted: bool = False
    wakeup: asyncio.Future[None] | None = None

    def grant(self) -> None:
        """The waiter holds from this moment on, even if it is cancelled before it wakes."""
        self.granted = True
        if self.wakeup is not None:
            self.wakeup.set_result(None)

    async def wait_for_grant(self, timeout_s: float | None = None) -> bool:
        """Return whether the request was granted in time."""
        if not self.granted:
            self.wakeup = asyncio.get_running_loop().create_future()
            # Awaited by itself, the future would be cancelled with its waiter, and could not be
            # granted any more.
            await asyncio.wait((self.wakeup,), timeout=timeout_s)
        return self.granted


@dataclass(frozen=True, slots=True)
class LocksetStatistics:
    """A lockset at one moment: keys held, and requests that wait for keys."""

    namespace: str
    locked: int
    waiting: int


class Lockset(Set[Hashable]):
    """A set of locked keys. What is added by hand and what `lock_ctx` takes exclude each other.

    It belongs to the event loop in which it was got; do not keep it for another. Use one type of
    key per namespace: a UUID and its text are two keys.
    """

    def __init__(self, namespace: str, busy: dict[str, Lockset]) -> None:
        """Make an empty lockset, kept alive in `busy` while a key is held or waited for."""
        self.namespace = namespace
        self._busy = busy
        self._held: dict[Hashable, LockRequest | None] = {}  # None: added by hand
        self._waiting: dict[LockRequest, None] = {}
        self._entering: dict[LockRequest, None] = {}  # the first of them is inside

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return (
            f"<Lockset {self.namespace!r}: {len(self._held)} locked, {len(self._waiting)} waiting>"
        )

    @classmethod
    def _from_iterable(cls, it: Iterable[_T]) -> set[_T]:
        return set(it)

    @property
    def wanted(self) -> frozenset[Hashable]:
        """Keys with a waiter, held or not. Leave them alone when you add keys by hand, and no
        waiter starves.
        """
        return frozenset(key for request in self._waiting for key in request.keys)

    def statistics(self) -> LocksetStatistics:
        """Return how many keys are held and how many requests wait for keys."""
        return LocksetStatistics(self.namespace, locked=len(self._held), waiting=len(self._waiting))

    def difference(self, keys: Iterable[Hashable]) -> set[Hashable]:
        """Return the locked keys that are not among `keys`."""
        return set(self._held).difference(keys)

    def add(self, key: Hashable) -> None:
        """Lock a free key by hand, inside the lock of the set, in which it was seen to be free.
        ``ValueError`` if it is locked: two holders would each think that it is theirs.
        """
        if key in self._held:
            raise ValueError(
                f"{key!r} of {self.namespace!r} is locked already; add only keys that are not in"
                " the lockset"
            )
        self._held[key] = None
        self._busy[self.namespace] = self

    def remove(self, key: Hashable) -> None:
        """Unlock a key that was added by hand, and wake who waits for it; ``KeyError`` for any
        other. The lock of the set is not needed.
        """
        if self._held.get(key, self) is not None:
            raise KeyError(f"{key!r} of {self.namespace!r} was not added by hand")
        del self._held[key]
        self._grant_next()

    def discard(self, key: Hashable) -> None:
        """Unlock a key if it was added by hand; any other is left as it is."""
        if self._held.get(key, self) is None:
            self.remove(key)

    def request(self, keys: tuple[Hashable, ...]) -> LockRequest:
        """Queue for `keys`, each named once; `leave` must follow. `Refusal` at `WAITERS_MAX`."""
        return self._join(self._waiting, LockRequest(keys))

    def request_inside(self) -> LockRequest:
        """Queue for the lock of the set; `leave` must follow. `Refusal` as above."""
        return self._join(self._entering, LockRequest())

    def leave(self, request: LockRequest) -> None:
        """Release what `request` holds, or its place in the queue, and nothing else."""
        self._waiting.pop(request, None)
        self._entering.pop(request, None)
        for key in request.keys if request.granted else ():
            del self._held[key]
        self._grant_next()

    def leave_inside(self) -> None:
        """Release the lock of the set."""
        self.leave(next(iter(self._entering)))

    def _join(self, queue: dict[LockRequest, None], request: LockRequest) -> LockRequest:
        entering = max(0, len(self._entering) - 1)
        if len(self._waiting) + entering >= WAITERS_MAX:
            raise Refusal(
                f"{WAITERS_MAX} requests wait for locks of {self.namespace!r} already; hold them"
                " for less time"
            )
        queue[request] = None
        self._busy[self.namespace] = self
        self._grant_next()
        return request

    def _grant_next(self) -> None:
        """Grant what can be had: who waits for keys goes before the next inside."""
        first = next(iter(self._entering), None)
        if first is None or not first.granted:
            promised: set[Hashable] = set()
            for request in tuple(self._waiting):
                if promised.isdisjoint(request.keys) and self._held.keys().isdisjoint(request.keys):
                    del self._waiting[request]
                    self._held.update(dict.fromkeys(request.keys, request))
                    request.grant()
                promised.update(request.keys)
            if first is not None:
                first.grant()
        if not self._held and not self._waiting:
            self._busy.pop(self.namespace, None)


class LocksetLock:
    """The lock of the set: while it is held, only its holder takes keys, so `lock_ctx` is not to be
    entered inside. First come, first served; not re-entrant. All handles are one lock.
    """

    def __init__(self, lockset: Lockset) -> None:
        self._lockset = lockset

    async def __aenter__(self) -> None:
        request = self._lockset.request_inside()
        try:
            await request.wait_for_grant()
        except asyncio.CancelledError:
            self._lockset.leave(request)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        self._lockset.leave_inside()


class ResourceLocker(ABC):
    """Locks resources by namespace and key; a namespace is usually the name of a table."""

    @abstractmethod
    def get_lockset(self, namespace: str) -> tuple[AbstractAsyncContextManager[None], Lockset]:
        """Return the set of locked keys, and the lock inside which to look at it and add to it."""

    @abstractmethod
    def lock_ctx(
        self, namespace: str, keys: Iterable[Hashable], *, timeout: timedelta | float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Hold all of `keys` inside the block; not re-entrant.

        Args:
            namespace: what the keys are keys of.
            keys: hashable, of one type per namespace, in any order; none at all is allowed.
            timeout: longest wait, a number being seconds; 0 asks once, None has no limit.

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
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]
            self._by_loop[loop] = _LocksetsOfLoop()
        locksets = self._by_loop[loop]
        lockset = locksets.known.get(namespace)
        if lockset is None:
            lockset = locksets.known[namespace] = Lockset(namespace, locksets.busy)
        return LocksetLock(lockset), lockset

    @asynccontextmanager
    async def lock_ctx(
        self, namespace: str, keys: Iterable[Hashable], *, timeout: timedelta | float | None = None
    ) -> AsyncIterator[None]:
        ordered, timeout_s = in_order(keys), _seconds(timeout)
        _, lockset = self.get_lockset(namespace)
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


class _NoLockset(Lockset):
    """Always empty: the database locks the rows."""

    def add(self, key: Hashable) -> None:
        pass

    def remove(self, key: Hashable) -> None:
        pass


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
