"""What a database must do: one abstract class for each part of a `Dialect`, in the order in which a
row meets them. `ResourceLocker` is in ``locks/locker.py``; the parts of wings stand with these.

The conformance tests (``tests/conformance``) say what each method must do. Whose transaction a
method joins stands in its first parameter; none of them ends it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Pool,
    Table,
    Text,
    literal,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper
from sqlalchemy.sql.selectable import FromClause

from rowlock.dialects.registry import DialectPart

if TYPE_CHECKING:
    from rowlock.leases.claim_request import ClaimedRow, ClaimRequest, Lease
    from rowlock.leases.table_looks import IndexSeen, Query
    from rowlock.rows.assignments import ColumnValues, Slot
    from rowlock.rows.leased_table import LeasedTable


# ---------------------------------------------------------------- errors


class ErrorVerdict(NamedTuple):
    """What a database says by the code of an error.

    Attributes:
        passes: the same statement may succeed later unchanged.
        concerns_every_row: it is about the server, the connection or other transactions alone.
        is_conflict: the transaction was rolled back for another one's sake.
        is_after_an_error: an earlier statement of the transaction had failed.
        is_of_the_size: a transaction that does less may succeed.
        is_of_the_schema: the statement is refused whichever rows it is about.
        is_of_the_values: it is refused for a value in it that the database cannot keep.
        is_of_the_server: a new connection may be answered otherwise.
    """

    passes: bool
    concerns_every_row: bool
    is_conflict: bool = False
    is_after_an_error: bool = False
    is_of_the_size: bool = False
    is_of_the_schema: bool = False
    is_of_the_values: bool = False
    is_of_the_server: bool = False


# ---------------------------------------------------------------- rows


class TimeSql(NamedTuple):
    """One database's SQL about times, each a template for `str.format` with its operands.

    Attributes:
        now: the time of the transaction: no later than its statements.
        instant: the time at this very moment.
        due_at_once: a time that is over, as a default that can be added to an existing table.
        time_after: `now` plus a number of seconds, which may be negative.
        epoch_seconds: `now` in whole seconds.
        is_same_time: whether two times are the same moment, nulls being equal.
        readable_time: a written time in the shape that is read; null, or itself, if it is none.
        is_no_time: whether the driver cannot read what is written; never null.
        is_beyond_time: whether it is behind all of Python's times, or none; never null.
    """

    now: str
    instant: str
    due_at_once: str
    time_after: str
    epoch_seconds: str
    is_same_time: str
    readable_time: str
    is_no_time: str
    is_beyond_time: str


class RowDialect(ABC):
    """One database's SQL about rows, one or many. Nothing is executed here.

    Attributes:
        keeps_zones: whether a time is bound with its zone; otherwise without, in UTC.
        alters_defaults: whether the default of a column can be changed.
        concurrently: options of ``op.create_index`` that let writes go on; None if there are none.
        empty_object: an empty JSON object as a column's default, as the database gives that back.
        rows_max: most rows of one execution: so many keep the event loop busy for some 10 ms.
    """

    keeps_zones: bool
    alters_defaults: bool
    concurrently: dict[str, Any] | None
    empty_object: str
    rows_max: int

    def reads_utc(self, driver: str) -> bool:
        """Whether a driver gives aware times in UTC; infinite ones may be naive."""
        return False

    @abstractmethod
    def times(self, driver: str) -> TimeSql: ...

    def type_of(self, column: Column[Any]) -> ColumnElement[str | None]:
        """Return a column's type in the table, reading no row; null where it does not matter."""
        return literal(None, Text)

    def nulls_first(self, column: str) -> str:
        """Return a column of an index whose nulls come first, if they do not by themselves."""
        return column

    def set_fillfactor(self, table: str, percent: int | None) -> str | None:
        """Return the statement that leaves room in a quoted table's pages, if there is one."""
        return None

    # Many rows in one statement.

    @abstractmethod
    def insert(self, table: Table, names: Sequence[str]) -> Any:
        """Return an INSERT of many rows, whose other columns get the database's defaults; the
        caller may add ``ON CONFLICT``. Its result has the number of rows that were written.
        """

    @abstractmethod
    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """For `rows`, one at least."""

    @abstractmethod
    def insert_unless_there(self, into: Any, columns: Sequence[Any], where: Any = None) -> Any:
        """Return an INSERT of one row into a table or model, which may be executed for many, unless
        one has the same values in `columns`: those of a unique index (of the rows of `where`), or
        of a constraint that is checked at once. Counts as `insert` does.
        """

    @abstractmethod
    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Whether a column of texts or whole numbers has one of the values of `parameter`."""

    @abstractmethod
    def among_parameter(self, values: Sequence[Any]) -> Any: ...

    @abstractmethod
    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Null has none."""

    @abstractmethod
    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        """Return what selects each column of all rows of a subquery as one value, for `gathered`;
        None if a type has no such value. The order is the same for all columns, and not for certain
        the subquery's.
        """

    @abstractmethod
    def gathered(self, value: Any) -> list[Any]: ...

    @abstractmethod
    def cannot_gather(self, error: Exception) -> bool:
        """Whether a value of `gather` was too large, or of a kind that cannot be gathered."""


ROWS: DialectPart[RowDialect] = DialectPart("rows", RowDialect)


# ---------------------------------------------------------------- notifications


class ChannelConnection(ABC):
    """One connection of a driver, outside of any pool and of any transaction, that may listen to a
    channel. An exception means that the channel is lost.
    """

    name = ""
    """Of the channel; empty before `listen`."""
    answer_s_max = 5.0
    """How long the server may take to answer, in seconds."""

    @property
    @abstractmethod
    def is_lost(self) -> bool: ...

    @abstractmethod
    async def schema(self) -> str | None:
        """That the connection works in."""

    @abstractmethod
    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        """Set `name`, and listen; calls back in the event loop, not for what it sent itself."""

    @abstractmethod
    async def notify(self, payloads: Sequence[str]) -> None:
        """Others have the payloads when this returns."""

    @abstractmethod
    async def is_listening(self) -> bool:
        """Asks the server."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def terminate(self) -> None: ...


# ---------------------------------------------------------------- transactions and connections


Connect: TypeAlias = Callable[[Engine], AsyncConnection]
"""Returns a connection beside the pool of the host, to be entered."""


class TransactionDialect(ABC):
    """One database's transactions and connections, and what its errors mean.

    Attributes:
        commits_single_statements: one statement under AUTOCOMMIT takes fewer round trips.
        claims_at_once: how many claims of a process may be sent at once; None for as many as the
            pool keeps connections.
    """

    commits_single_statements: bool
    claims_at_once: int | None

    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Let statements take fewer turns between threads in the block."""
        return nullcontext()

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Make it a transaction that may write, first of all, where not every one may; waits
        `wait_s` at most.
        """

    def bound_waits(self, pool: Pool, wait: timedelta) -> None:
        """Bound lock waits that nothing can cancel, for connections opened from now on."""

    def roll_back_before_cancel(self, driver: Any) -> asyncio.Task[bool] | None:
        """Begin to roll back where cancelling alone would not free what the transaction holds."""
        return None

    @abstractmethod
    async def end_stalled(
        self, engine: Engine, driver: Any, connect: Connect, *, older_than_s: float
    ) -> bool | None:
        """End a transaction of another thread's loop that has been open for `older_than_s` at
        least. Return whether it was rolled back; None if another attempt may end it.
        """

    @abstractmethod
    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the code of a driver's exception says; None if it is of no such database."""

    @abstractmethod
    def channel_of(self, driver: str) -> Callable[[Any], ChannelConnection]:
        """Return what makes a channel of a driver's connection; `ConfigurationError` if it cannot
        listen.
        """


TRANSACTIONS: DialectPart[TransactionDialect] = DialectPart("transactions", TransactionDialect)


# ---------------------------------------------------------------- locks until a commit


class LockDialect(ABC):
    """One database's locks until a transaction ends. False if not in time."""

    @abstractmethod
    async def hold_name(
        self, connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
    ) -> bool:
        """`ConfigurationError` if the lock could not last until the commit."""

    @abstractmethod
    async def hold_name_with_snapshot(
        self, session: AsyncSession, namespace: str, timeout_s: float | None
    ) -> bool:
        """As `hold_name`, and see from then on what its last holder committed; `ConfigurationError`
        if the transaction has a snapshot from before the lock.
        """

    @abstractmethod
    async def hold_rows(
        self,
        session: AsyncSession,
        mapper: Mapper[Any],
        keys: tuple[Hashable, ...],
        *,
        timeout_s: float | None,
    ) -> bool:
        """Lock all rows or none."""

    async def queue_to_write(
        self,
        session: AsyncSession,
        name: str,
        *,
        unless: Callable[[], Awaitable[bool]],
        timeout_s: float,
    ) -> bool:
        """Wait in a queue of this process before writing, where one writes at a time; return
        whether it was joined here. It is left when the transaction ends. `LockWaitTimeout` after
        `timeout_s`. Where waiting would keep others from writing, `unless` is asked whether nothing
        will be written.
        """
        return False

    def leave_queue(self, session: AsyncSession, name: str) -> None:
        """Let the next one write; only if `queue_to_write` joined and nothing was written."""


LOCKS: DialectPart[LockDialect] = DialectPart("locks", LockDialect)


def locks_of(connection: AsyncConnection | AsyncSession) -> LockDialect:
    """Return the locks of a database, without connecting; `TypeError` if it is neither a session
    nor a connection.
    """
    if isinstance(connection, AsyncConnection):
        return LOCKS.of(connection)
    if isinstance(connection, AsyncSession):
        return LOCKS.on(connection.get_bind().dialect.name)
    raise TypeError(
        f"pass an AsyncSession or an AsyncConnection, not a {type(connection).__name__}"
    )


# ---------------------------------------------------------------- leases


class LeaseDialect(ABC):
    """One database's claims, and how it finds rows by their leases."""

    def excluding(
        self, leased: LeasedTable, *, timeout: timedelta
    ) -> AbstractAsyncContextManager[frozenset[Any]]:
        """Hold off those who lock keys in this process; gives the keys that they hold.
        `LockWaitTimeout` after `timeout`.
        """
        return nullcontext(frozenset())

    @abstractmethod
    async def claim(
        self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]
    ) -> list[ClaimedRow]:
        """Lease the rows that `request` describes, save those of `held`; oldest first."""

    async def release_claim(self, connection: AsyncConnection, request: ClaimRequest) -> None:
        """Release the rows of a claim that was committed and whose answer could not be read, as
        they were before; one that is locked at the moment is left to its expiry.
        """

    @abstractmethod
    def matches_leases(self, leased: LeasedTable) -> ColumnElement[bool]:
        """Whether key and token of a row are those of a lease in `lease_parameters`."""

    @abstractmethod
    def lease_parameters(self, leased: LeasedTable, leases: Sequence[Lease]) -> dict[str, Any]: ...

    @abstractmethod
    def held_parameters(
        self, leased: LeasedTable, leases: Sequence[Lease], values: Mapping[Slot, Sequence[Any]]
    ) -> dict[str, Any] | None:
        """Return the parameters of `unnested`, with one of `values` of each slot for each lease;
        None if a value can only be bound alone.
        """

    @abstractmethod
    def unnested(self, leased: LeasedTable, slots: Iterable[Slot]) -> FromClause:
        """Return leases and values as rows: key, token, slots. Takes `held_parameters`."""

    async def has_places(self, connection: AsyncConnection, leased: LeasedTable) -> bool:
        """Whether a statement may find rows that it has locked again by their places."""
        return False

    def guarded_update(
        self,
        leased: LeasedTable,
        slots: Sequence[Slot],
        *,
        unless_changed: Mapping[str, Column[Any]],
        values: Callable[[Mapping[str, ColumnElement[Any]]], ColumnValues],
    ) -> Executable:
        """Return a statement that locks those rows of `unnested` that are free, still carry their
        tokens and have the values of the slots named by `unless_changed`, writes them, and gives
        their count, and the first slot of each unless these are all ``rowlock_count`` rows. One
        whose stamp is ahead of the clock is left out. Asked where the table `has_places`.
        """
        raise NotImplementedError

    @abstractmethod
    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        """Narrow `condition` for an UPDATE to at most `limit` rows that it need not wait for."""

    async def kept_as(
        self, connection: AsyncConnection, column: Column[Any], values: Iterable[datetime]
    ) -> list[ColumnElement[Any]]:
        """Return `values` as `column` keeps what was written of them."""
        return [literal(value, column.type) for value in values]

    @abstractmethod
    def indexes(self, connection: Connection, table: Table) -> tuple[IndexSeen, ...]:
        """Return the indexes of a table, that of its primary key apart."""

    @abstractmethod
    def serving(
        self, connection: Connection, query: Query, *, table: Table, names: Sequence[str]
    ) -> str | None:
        """Return which of some indexes the planner can read for `query`, a SELECT of the table
        alone, in its order. What is set for that lasts until the transaction, or its savepoint, is
        rolled back.
        """


LEASES: DialectPart[LeaseDialect] = DialectPart("leases", LeaseDialect)
