"""The claim ticket: what a holder knows about the row it leased, and about the related rows that it
locked besides.

The one idea: a holder's trust ends *before* the database's lease does. It is counted on the
monotonic clock from the moment at which the last confirmed claim or renewal was *sent*, so that
neither a slow answer nor a wall clock that was set can stretch it.

Source: River anchors its leadership the same way (``internal/leadership``): from the start of the
attempt that succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, overload
from uuid import UUID

from sqlalchemy import Column, ColumnElement, ColumnExpressionArgument, event, inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import InstanceState, Mapped, ORMExecuteState, Session, SessionTransaction

from rowlock.clock import monotonic
from rowlock.errors import LeaseLost, OutcomeError, PipelineError
from rowlock.leases.acquire import Acquired, lock_held, read_fresh
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.leased_table import LeasedTable, ModelT_co, changed_attributes
from rowlock.rows.updates import Values, columns_written


@dataclass(slots=True, eq=False)
class HeldRows:
    """Related rows of one item, by table, in two sets, since the answer to a COMMIT may be lost:
    rows known to be held, on which a result may rest, and rows that may be held, which are released
    at every end. Heartbeats in another thread read both: what they read is replaced, never changed
    in place. The `lock` is held while rows are being locked, and while the item is settled.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rows: list[Any] = field(default_factory=list)
    _tables: dict[type, LeasedTable] = field(default_factory=dict)
    _known: dict[type, dict[Any, ColumnValues]] = field(default_factory=dict)
    _perhaps: dict[type, Acquired] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._perhaps.values()))

    def __repr__(self) -> str:
        # An item shows it, and what the dataclass makes of itself has values of rows.
        held = ", ".join(f"{len(keys)} of {model.__name__}" for model, keys in self._known.items())
        return f"<HeldRows {held or 'none'}>"

    def count_with(self, leased: LeasedTable, acquired: Acquired) -> int:
        return len(self) + len(acquired.keys() - self._perhaps.get(leased.model, {}).keys())

    def may_hold(self, leased: LeasedTable, acquired: Acquired) -> None:
        """Called before the transaction that locks the rows is committed."""
        self._tables = self._tables | {leased.model: leased}
        before = self._perhaps.get(leased.model, {})
        # Under the item's own token no row shows who had reserved it.
        more = {key: owner or before.get(key) for key, owner in acquired.items()}
        self._perhaps = self._perhaps | {leased.model: before | more}

    def holds(self, leased: LeasedTable, as_read: dict[Any, ColumnValues]) -> None:
        """Called once rows are locked for certain, with values that must be unchanged."""
        known = self._known.get(leased.model, {}) | as_read
        self._known = self._known | {leased.model: known}

    def as_read(self, leased: LeasedTable, key: object) -> ColumnValues:
        """Return what a service must not have changed since the row was locked."""
        return self._known[leased.model][key]

    def find(self, named: object) -> tuple[LeasedTable, Any]:
        """Return table and key of a held row; `OutcomeError` if it is none, or not held."""
        match named:
            case (type() as model, key):
                pass
            case _:
                state = inspect(named, raiseerr=False)
                if not isinstance(state, InstanceState) or state.identity is None:
                    raise OutcomeError(
                        "related names rows as lock_related() returned them, or pairs (Model,"
                        f" key), not {named!r:.100}"
                    )
                model, key = type(named), state.identity[0]
        for held_model, leased in self._tables.items():
            if issubclass(model, held_model) and key in self._known.get(held_model, ()):
                return leased, key
        raise OutcomeError(
            f"{model.__name__} {key} is not locked by this item; lock it with item.lock_related()"
            " first"
        )

    def unwritten(self, related: Mapping[Any, Values]) -> list[str]:
        """Return which attributes of `rows` were changed that `related` does not write."""
        changed = [(row, names) for row in self.rows if (names := changed_attributes(row))]
        if not changed:
            return []
        written = {
            (leased.model, key): columns_written(leased, values)
            for (leased, key), values in ((self.find(row), each) for row, each in related.items())
        }
        return [
            f"{leased.name}.{name}"
            for row, names in changed
            for leased, key in [self.find(row)]
            for name in names
            if leased.columns_by_name.get(name) not in written.get((leased.model, key), ())
        ]

    def is_known(self, leased: LeasedTable, key: object) -> bool:
        return key in self._known.get(leased.model, ())

    def known(self) -> Iterator[tuple[LeasedTable, tuple[Any, ...]]]:
        return ((self._tables[model], tuple(keys)) for model, keys in self._known.items() if keys)

    def perhaps(self) -> Iterator[tuple[LeasedTable, Acquired]]:
        return ((self._tables[model], keys) for model, keys in self._perhaps.items() if keys)


_LOST = float("-inf")
_WATCHED = "rowlock_watched"
RelatedT = TypeVar("RelatedT")
KeyT = TypeVar("KeyT")
KeyT_co = TypeVar("KeyT_co", covariant=True)


class HasMappedId(Protocol[KeyT]):
    """A model with ``id: Mapped[...]``, as pyright sees it."""

    id: Mapped[KeyT]


class HasId(Protocol[KeyT_co]):
    """A model whose instances have an `id`: as mypy sees models, and both a SQLModel."""

    @property
    def id(self) -> KeyT_co | None: ...


class RowKey:
    """The type of ``item.id`` for type checkers: that of the model's `id`, else Any."""

    @overload
    def __get__(self, item: None, owner: Any) -> RowKey: ...
    @overload
    def __get__(self, item: PipelineItem[HasMappedId[KeyT]], owner: Any) -> KeyT: ...
    @overload
    def __get__(self, item: PipelineItem[HasId[KeyT]], owner: Any) -> KeyT: ...
    @overload
    def __get__(self, item: object, owner: Any) -> Any: ...
    def __get__(self, item: Any, owner: Any) -> Any:
        raise NotImplementedError


@dataclass(eq=False)
class _Keyed:
    id: Any


# Without slots: what most items never set stays with the class, and costs nothing to make.
@dataclass(eq=False)
class PipelineItem(_Keyed, Generic[ModelT_co]):
    """One claim of one row.

    Attributes:
        id: the row's primary key.
        lock_token: fences everything written for this claim.
        lock_owner: the pipeline's name.
        lock_expires_at: when the lease ends by the database's clock, as far as this holder has
            heard.
        prev_lock_expired: the previous holder died with the lease in hand; side effects of its
            attempt may exist.
        attempt: which attempt this is, 1-based; always 1 for a model without `ScheduleColumns`.
        place: where it stands in the order of claims: when it was due, in seconds since the epoch;
            minus infinity if it was never processed.
        waited_s: for how long the row had been due when its attempt began, in seconds, by the
            clock of the database; None before, and if that is not known.
        trusted_until: end of trust, in seconds on the monotonic clock, as are `claimed_at`,
            `queued_at`, `begun_at` and `ended_at`; those are 0 before.
        is_rehearsal: `process` is only rehearsed: its outcome is shown and not written, and its
            sessions only read. What it does to other systems is done.
    """

    if TYPE_CHECKING:
        id: ClassVar[RowKey] = RowKey()  # type: ignore[misc]

    lock_token: UUID
    lock_owner: str
    lock_expires_at: datetime
    prev_lock_expired: bool
    attempt: int
    place: float
    claimed_at: float
    trusted_until: float
    session_factory: async_sessionmaker[AsyncSession] = field(repr=False)
    # A RelatedLocker, which knows this module.
    locker: Any = field(default=None, repr=False)
    leased: LeasedTable | None = field(default=None, repr=False)
    # A column that holds what cannot be read: such a row is not processed.
    unreadable: str | None = None
    _claimed: Sequence[Any] | None = field(default=None, repr=False)
    is_rehearsal: bool = False
    queued_at: float = field(default=0.0, init=False, repr=False)
    begun_at: float = field(default=0.0, init=False, repr=False)
    ended_at: float = field(default=0.0, init=False, repr=False)
    waited_s: float | None = field(default=None, init=False, repr=False)
    held: HeldRows | None = field(default=None, init=False)
    stop: asyncio.Event | None = field(default=None, init=False, repr=False)
    # What was changed in a session of its own and not committed.
    unwritten: Sequence[str] = field(default=(), init=False)
    # Its outcome is on its way: nothing more is locked for it.
    is_settling: bool = field(default=False, init=False)
    # By a transaction of its own work, fenced by its token: there is nothing left to write.
    is_deleted: bool = field(default=False, init=False)
    # Run once, in the background, when its outcome is no longer on its way, however it ended.
    after_settling: Callable[[], Coroutine[Any, Any, None]] | None = field(
        default=None, init=False, repr=False
    )
    _row: ModelT_co | None = field(default=None, init=False, repr=False)

    @property
    def begun_attempt(self) -> int | None:
        """Which attempt `process` was called for; None before, and for one that was prevented."""
        return self.attempt if self.begun_at else None

    @property
    def process_s(self) -> float | None:
        """How long its attempt took, in seconds; None as long as it has not ended."""
        return self.ended_at - self.begun_at if self.ended_at else None

    @property
    def row(self) -> ModelT_co:
        """The row as it was read under the token when work began: a detached instance; changing it
        writes nothing.

        Work that had not to wait for a worker may get the row as its claim read it, a tenth of a
        second earlier; up to one second where claims take long or the event loop is busy.

        Raises:
            PipelineError: the item has not left the queue yet.
        """
        row = self._row
        if row is None:
            if self._claimed is None or self.leased is None:
                raise PipelineError(
                    "the row is read when work on the item begins; it is not there while the item"
                    " is queued"
                )
            # Made when it is asked for: much work asks for nothing but the key.
            row = self._row = self.leased.instance(self._claimed)
        return row

    @row.setter
    def row(self, row: Any) -> None:
        self._row = row

    @property
    def has_row(self) -> bool:
        """Whether the row was read."""
        return self._row is not None or self._claimed is not None

    @property
    def is_untouched(self) -> bool:
        """Whether the row is as it was read, no other is locked, and no change is uncommitted."""
        # Asked for each row, and so of SQLAlchemy's state itself.
        state: Any = getattr(self._row, "_sa_instance_state", None)
        is_modified = state is not None and state.modified
        return not (is_modified or self.held is not None or self.unwritten)

    def changed_attributes(self) -> list[str]:
        """Return which attributes of ``item.row`` were set to something else since it was read, as
        far as SQLAlchemy knows: not what was changed inside of a value.
        """
        return changed_attributes(self._row)

    def value_as_read(self, leased: LeasedTable, column: Column[Any]) -> Any:
        """Return what `column` of the row was when it was read, also where ``item.row`` was changed
        since.

        Raises:
            OutcomeError: the column was not loaded.
        """
        if self._row is None and self._claimed is not None:
            return leased.value_as_claimed(self._claimed, column)
        return leased.value_as_read(self.row, column)

    @property
    def remaining(self) -> timedelta:
        """Time left in which this holder may trust its lease, unless renewed; never negative."""
        return timedelta(seconds=max(0.0, self.trusted_until - monotonic()))

    @property
    def is_lost(self) -> bool:
        """Whether trust has ended. It never comes back for this token."""
        return self.trusted_until == _LOST

    def is_trusted(self, at: float | None = None) -> bool:
        """Whether the holder may still act on its lease now, or might `at` a time of the
        monotonic clock.
        """
        return (monotonic() if at is None else at) < self.trusted_until

    def lose(self) -> None:
        """End trust for good."""
        self.trusted_until = _LOST

    def lease_lost(self, related: str = "") -> LeaseLost:
        """Return the error of a holder that acts on its row, or on rows of `related`, no longer."""
        row_id = f"{self.id} for its rows of {related}" if related else self.id
        return LeaseLost(pipeline=self.lock_owner, row_id=row_id)

    def session(self) -> AsyncSession:
        """Return a new short session of the host's factory, to be used as ``async with
        item.session() as session``.

        Keep it short: heavy work belongs outside of sessions. What is written through it is not
        fenced by the lease. A block that ends with changes that were not committed, and so are
        lost, makes a success of the attempt a failure.

        Raises:
            LeaseLost: the lease can no longer be trusted.
        """
        if not self.is_trusted():
            raise self.lease_lost()
        return _watched(self.session_factory(), self)

    async def guard(self, session: AsyncSession) -> ModelT_co:
        """Make sure that the row is held under this item's token until the session's transaction
        ends, and return it as it is now; joins the caller's transaction.

        For long work that writes as it goes: call it first in a transaction that writes, and what
        is committed then was written under the lease, whatever delayed it. Nobody renews the lease
        meanwhile, so keep the transaction much shorter than `lock_timeout`, and end it before
        `process` returns. An instance that the session has already is refreshed.

        Raises:
            LeaseLost: the row is held no longer; let it out of `process`.
            PipelineError: the item was not claimed by a pipeline.
        """
        if self.leased is None:
            raise PipelineError("this item was not claimed by a pipeline; only such an item guards")
        if self.is_rehearsal:
            # Nothing can be locked where nothing can be written.
            held: Collection[Any] = (self.id,)
        else:
            held, _ = await lock_held(session, self.leased, (self.id,), token=self.lock_token)
        # Trust is asked as late as it can be: the row may have been waited for.
        if not held or not self.is_trusted():
            raise self.lease_lost()
        rows: list[ModelT_co] = await read_fresh(session, self.leased, (self.id,))
        if not rows:
            raise self.lease_lost()
        return rows[0]

    @property
    def stop_requested(self) -> bool:
        """Whether work on this item is to end soon, since its replica shuts down. May be read in
        any thread.

        Work that does not end by itself looks at it between two steps, or waits for it by
        `wait_for_stop`; who does neither is cancelled when the grace of the shutdown is over.
        """
        return self.stop is not None and self.stop.is_set()

    async def wait_for_stop(self) -> None:
        """Return once work on this item is to end soon: see `stop_requested`.

        Raises:
            PipelineError: the item is not processed by a pipeline, so no stop can be requested.
        """
        if self.stop is None:
            raise PipelineError("work on this item has not begun, so no stop can be requested")
        await self.stop.wait()

    async def lock_related(
        self, model: type[RelatedT], where: ColumnExpressionArgument[bool], *, shared: bool = False
    ) -> list[RelatedT]:
        """Lock every row of `model` where `where` holds, all or none, and return them as they are
        now, in the order of their keys.

        In one short transaction of its own, which waits for no related row. The rows are detached;
        write them by ``Apply(related={row: values})``. They belong to this item: their lease is
        renewed with its own, and they are released in the transaction that releases its own row.
        May be called again; what the item holds already is counted as free.

        Args:
            model: a mapped class that the pipeline's `locks` declare, or one of its own table.
            where: one SQL expression, such as ``Instance.fleet_id == item.id``. Rows that are not
                there do not count: none at all is no failure.
            shared: many items of this pipeline want the same rows, one at a time: the owner names
                this item as well.

        Raises:
            RelatedLockUnavailable: one has another holder, so none was locked. Let it out of
                `process`: the row is `Reset` and comes back for them, and pipelines that respect
                `locks` leave them alone until then.
            LeaseLost: the item's own lease has ended.
            ModelError: `model` cannot be leased.
            ConfigurationError: the pipeline does not declare `model` in `locks`. Nothing was
                locked.
            PipelineError: `where` is not an SQL expression, or names more rows than an item may
                hold (10,000).
            LockWaitTimeout: the lockset of the table was kept locked in this process for too long
                (SQLite).
            TransactionTimeout: the database did not answer in time.
        """
        if self.locker is None:
            raise PipelineError(
                "this item was not claimed by a pipeline; only such an item locks related rows"
            )
        condition = getattr(where, "expression", where)
        if not isinstance(condition, ColumnElement):
            raise PipelineError(
                f"lock_related takes one SQL expression, such as {model.__name__}.parent_id =="
                f" item.id, not {where!r:.100}"
            )
        rows: list[RelatedT] = await self.locker.lock(self, model, condition, shared=shared)
        self.held_rows().rows += rows
        return rows

    def held_rows(self) -> HeldRows:
        """Return where related rows are noted, made at the first call."""
        if self.held is None:
            self.held = HeldRows()
        return self.held

    async def stop_locking(self) -> None:
        """Lock nothing more for this item; returns when what is being locked is locked or not."""
        self.is_settling = True
        if self.held is not None:
            async with self.held.lock:
                pass


def _watched(session: AsyncSession, item: PipelineItem[Any]) -> AsyncSession:
    """Have `item` note what is changed in `session` and not committed when its block ends."""
    sync, flushed = session.sync_session, list[str]()
    sync.info[_WATCHED] = (item, flushed)

    def write(state: ORMExecuteState) -> None:
        # A statement over a table, without a mapper, may be one of ours.
        if state.bind_mapper and (state.is_insert or state.is_update or state.is_delete):
            flushed.append(state.bind_mapper.class_.__name__)

    def end(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            flushed.clear()

    event.listen(sync, "after_flush", lambda *_: flushed.extend(_unflushed(sync)))
    event.listen(sync, "do_orm_execute", write)
    event.listen(sync, "after_transaction_end", end)
    # Of which savepoint a change was is not known.
    event.listen(sync, "after_soft_rollback", lambda *_: flushed.clear())
    # A block that an exception ends has given its changes up, and only `__aexit__` knows of it.
    cls: Any = type(session)
    session.__class__ = _watched_class(cls)
    return session


@lru_cache
def _watched_class(cls: type[AsyncSession]) -> type[AsyncSession]:
    async def leave(self: AsyncSession, *raised: Any) -> None:
        item, flushed = self.sync_session.info[_WATCHED]
        if raised[0] is None:
            names = (*flushed, *_unflushed(self.sync_session))
            item.unwritten = tuple(dict.fromkeys(names)) or item.unwritten
        await cls.__aexit__(self, *raised)

    own: Any = {"__aexit__": leave, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), own)


def _unflushed(session: Session) -> Iterator[str]:
    for one in (*session.new, *session.deleted):
        yield type(one).__name__
    for one in session.dirty:
        yield from (f"{type(one).__name__}.{name}" for name in changed_attributes(one))


def leases_of(items: Sequence[PipelineItem[Any]]) -> list[tuple[Any, UUID]]:
    return [(item.id, item.lock_token) for item in items]
