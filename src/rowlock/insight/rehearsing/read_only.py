"""Sessions that write nothing, whatever is tried with them; and the host's own, which are refused
meanwhile.

The one idea: a session that only reads has connections of its own, which are set so at the begin
of each transaction. The host's pool is refused to whatever
runs in the context of a rehearsal, and to nobody else: its requests go on.

Not here: what the host's code does to other systems. Nobody can take that back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Final

from sqlalchemy import Connection, Engine, Pool, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.pool import ConnectionPoolEntry

from rowlock.database.separate_pool import SeparatePool
from rowlock.errors import PipelineError
from rowlock.insight.dialects.insight_dialect import INSIGHT

_READS: Final = "rowlock_reads_only"
_IS_REHEARSAL: Final[ContextVar[bool]] = ContextVar("rowlock_is_rehearsal", default=False)


class ReadOnlySessions(SeparatePool):
    """Makes sessions as the host does, on connections that write nothing."""

    def __call__(self) -> AsyncSession:
        """Return a new session."""
        session = super().__call__()
        event.listen(session.sync_session, "after_begin", _begin)
        return session

    def _clone_of_root(self, engine: Engine) -> Engine:
        clone = super()._clone_of_root(engine)
        event.listen(clone.pool, "connect", _mark)
        return clone


def _mark(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_READS] = True


def _begin(session: object, _transaction: object, connection: Connection) -> None:
    INSIGHT.on(connection.dialect.name).begin_without_writing(connection)


def rehearsal_context() -> Context:
    """Return a copy of the context of the caller, in which the host's pools are refused."""
    context = copy_context()
    context.run(_IS_REHEARSAL.set, True)
    return context


@contextmanager
def refused_to_rehearsals(pools: Iterable[Pool]) -> Iterator[None]:
    """Refuse connections of `pools` to what runs in a `rehearsal_context`, for the time of the
    block.
    """

    # One that is copied from such a pool has its listeners, too.
    def refuse(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if _IS_REHEARSAL.get() and _READS not in record.info:
            raise PipelineError(
                "a rehearsal writes nothing, so it has no connection of the host's own: open"
                " sessions by item.session()"
            )

    with ExitStack() as stack:
        for pool in {*pools}:
            event.listen(pool, "checkout", refuse)
            stack.callback(event.remove, pool, "checkout", refuse)
        yield
