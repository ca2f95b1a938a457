"""The locked keys of one namespace in this process, and the queues for them.

The one idea: a `LockRequest` joins the queues of all its keys in one step and holds them, all or
none, once it is first in each. So no request holds some keys while waiting for others, none
overtakes on a key that both want, and to give up waiting is the same step as to release: leave the
queues.

Invariants: the holder of a key is first in its queue; `lock_ctx` is granted nothing while somebody
is inside the lock of the set; the only future is that of a request, and goes with it.

Not here: which lockset belongs to a namespace and to an event loop (``locker.py``); other
processes.

Source: the request queues of a database's lock manager (Gray and Reuter, "Transaction Processing",
ch. 8).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import TypeVar

from rowlock.errors import Refusal

WAITERS_MAX = 10_000
"""Most requests that may wait in one namespace."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class LockRequest:
    """One waiter's place in the queues of its keys. Written by the lockset alone."""

    keys: tuple[Hashable, ...] = ()
    by_hand: bool = False
    granted: bool = False
    keys_not_first: int = 0
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
        self._held: dict[Hashable, LockRequest] = {}
        self._queues: dict[Hashable, OrderedDict[LockRequest, None]] = {}
        self._waiting: dict[LockRequest, None] = {}
        self.inside: LockRequest | None = None
        self._waiting_outside: OrderedDict[LockRequest, None] = OrderedDict()

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
        """Keys that somebody waits for, held or not. Who takes keys by hand and leaves these
        alone starves nobody.
        """
        return frozenset(key for request in self._waiting for key in request.keys)

    def statistics(self) -> LocksetStatistics:
        """Return how many keys are held and how many requests wait for keys."""
        return LocksetStatistics(self.namespace, locked=len(self._held), waiting=len(self._waiting))

    def difference(self, keys: Iterable[Hashable]) -> set[Hashable]:
        """Return the locked keys that are not among `keys`."""
        return set(self._held).difference(keys)

    def add(self, key: Hashable) -> None:
        """Lock a free key by hand; do it inside the lock of the set, in which it was seen to be
        free.

        Raises:
            ValueError: the key is locked; two holders would each think that it is theirs.
        """
        if key in self._held:
            raise ValueError(
                f"{key!r} of {self.namespace!r} is locked already; add only keys that are not in"
                " the lockset"
            )
        holder = LockRequest((key,), by_hand=True, granted=True)
        queue = self._queues.setdefault(key, OrderedDict())
        if queue:
            next(iter(queue)).keys_not_first += 1
        queue[holder] = None
        queue.move_to_end(holder, last=False)
        self._held[key] = holder
        self._busy[self.namespace] = self

    def remove(self, key: Hashable) -> None:
        """Unlock a key that was added by hand, and wake who waits for it. The lock of the set is
        not needed.

        Raises:
            KeyError: no such key was added by hand; what `lock_ctx` took, only that `lock_ctx`
                releases.
        """
        holder = self._held.get(key)
        if holder is None or not holder.by_hand:
            raise KeyError(f"{key!r} of {self.namespace!r} was not added by hand")
        self.leave(holder)

    def discard(self, key: Hashable) -> None:
        """Unlock a key if it was added by hand; any other is left as it is."""
        holder = self._held.get(key)
        if holder is not None and holder.by_hand:
            self.leave(holder)

    def request(self, keys: tuple[Hashable, ...]) -> LockRequest:
        """Queue for `keys`, each named once; `leave` must follow. `Refusal` at `WAITERS_MAX`."""
        self._check_room()
        request = LockRequest(keys)
        for key in keys:
            queue = self._queues.setdefault(key, OrderedDict())
            request.keys_not_first += bool(queue)
            queue[request] = None
            self._busy[self.namespace] = self
        self._waiting[request] = None
        self._grant_if_first(request)
        return request

    def leave(self, request: LockRequest) -> None:
        """Release what `request` holds, or its places in the queues, and nothing else."""
        self._waiting.pop(request, None)
        for key in request.keys:
            queue = self._queues[key]
            was_first = next(iter(queue)) is request
            del queue[request]
            if request.granted:
                del self._held[key]
            if not queue:
                del self._queues[key]
            elif was_first:
                successor = next(iter(queue))
                successor.keys_not_first -= 1
                self._grant_if_first(successor)
        if not self._queues:
            self._busy.pop(self.namespace, None)

    def request_inside(self) -> LockRequest:
        """Queue for the lock of the set; `leave_inside` must follow. `Refusal` as above."""
        self._check_room()
        request = LockRequest()
        self._waiting_outside[request] = None
        self._admit_next()
        return request

    def leave_inside(self, request: LockRequest) -> None:
        """Release the lock of the set, or the place in its queue. Who waits for keys goes before
        the next inside.
        """
        if request is not self.inside:
            del self._waiting_outside[request]
            return
        self.inside = None
        for waiting in tuple(self._waiting):
            self._grant_if_first(waiting)
        self._admit_next()

    def _check_room(self) -> None:
        if len(self._waiting) + len(self._waiting_outside) >= WAITERS_MAX:
            raise Refusal(
                f"{WAITERS_MAX} requests wait for locks of {self.namespace!r} already; hold them"
                " for less time"
            )

    def _grant_if_first(self, request: LockRequest) -> None:
        if request.keys_not_first == 0 and self.inside is None:
            del self._waiting[request]
            self._held.update(dict.fromkeys(request.keys, request))
            request.grant()

    def _admit_next(self) -> None:
        if self.inside is None and self._waiting_outside:
            self.inside, _ = self._waiting_outside.popitem(last=False)
            self.inside.grant()


class LocksetLock:
    """The lock of the set: while it is held, only its holder takes keys. First come, first served;
    not re-entrant.

    `lock_ctx` takes its keys while the lock is free: do not enter it inside. All handles on one
    lockset are one lock.
    """

    def __init__(self, lockset: Lockset) -> None:
        self._lockset = lockset

    async def __aenter__(self) -> None:
        request = self._lockset.request_inside()
        try:
            await request.wait_for_grant()
        except asyncio.CancelledError:
            self._lockset.leave_inside(request)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        if self._lockset.inside is not None:
            self._lockset.leave_inside(self._lockset.inside)
