"""`StreamFlow.snapshot`: the states of all shards at the start of one step, while they do the next
ones. Rows that a fold has written are not among them: there is one of each.

The one idea: the row of the flow counts the readers that wait for a snapshot, and those of the last
one. The cut of a snapshot makes readers of those that wait, and is not made while the last one has
readers. So a snapshot is there until its last reader ends, and a reader that dies keeps it for
`SNAPSHOT_KEPT_FOR`, which is the limit for all.

A reader checks behind each page whether the snapshot is kept still: only then was the page of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar, overload

from sqlalchemy import and_, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import hint_after_commit
from rowlock.clock import monotonic, rest, sleep
from rowlock.errors import ConfigurationError
from rowlock.logs import get_logger
from rowlock.spi import database_instant, is_transient
from rowlock.stream_errors import NotProcessedYet, StoreClosedError, VersionNotFoundError
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    BatchHandler,
    KeyHandler,
    StageHandler,
    StateCodec,
    name_of,
)
from rowlock.streams.consumers import woken_by
from rowlock.streams.flow_row import absence_of, no_row
from rowlock.streams.flow_view import read_frontier
from rowlock.streams.key_states import PageBounds, read_snapshot
from rowlock.streams.program import FlowProgram
from rowlock.streams.settings import seconds_of
from rowlock.streams.status import NOTHING, flow_text, look_at
from rowlock.streams.waits import LOOK_EVERY_S, POLL_S, ask_why
from rowlock.tasks import finish

logger = get_logger(__name__)

NO_HOLDER: Final = "no replica holds a shard, so no snapshot is cut"
NOT_KNOWN_YET: Final = "the snapshot of an earlier reader is kept, or no replica has cut this one"


class SnapshotKeeping:
    def __init__(self, program: FlowProgram, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._program = program
        self.database = program.tables.opened_by(sessions)
        self.pages = program.tables.opened_by(sessions, timeout=PAGE_TIMEOUT)

    async def acquire(self, timeout: timedelta | float) -> int:
        """Have a snapshot cut, and wait until all shards have written it; return its version."""
        limit_s = seconds_of(timeout)
        request = asyncio.create_task(self._request(), name="rowlock: request a snapshot")
        try:
            asked_at = await asyncio.shield(request)
        except asyncio.CancelledError:
            await finish(self._withdraw_request(request), purpose="end a snapshot")
            raise
        try:
            async with asyncio.timeout(limit_s):
                return await self._wait(asked_at)
        except TimeoutError:
            await self._withdraw(asked_at)
            reason = await ask_why(self.database, self._reason)
            raise NotProcessedYet(
                flow=self._program.name, what="the step of a snapshot", reason=reason
            ) from None
        except BaseException:
            # A cancellation, too: the snapshot would be kept for a reader that is gone.
            await self._withdraw(asked_at)
            raise

    async def release(self, version: int) -> None:
        """Read no more; the next snapshot may be cut if there is no other reader."""
        await self._at_the_end(
            lambda session, connection: self._release(session, connection, version)
        )

    async def check(self, connection: AsyncConnection, version: int) -> None:
        """Refuse what was read in this transaction, unless the snapshot is kept still."""
        flows = self._program.tables.flows.c
        is_kept = and_(flows.kept_snapshot == version, flows.kept_until > database_instant())
        found = select(is_kept).where(flows.id == self._program.id)
        if not await connection.scalar(found):
            raise VersionNotFoundError(flow=self._program.name, version=version)

    async def _request(self) -> int:
        """Be counted among those that wait; return the first step that is not cut."""
        flows = self._program.tables.flows

        async def work(session: AsyncSession, connection: AsyncConnection) -> int:
            counted = (
                update(flows)
                .where(flows.c.id == self._program.id)
                .values(snapshots_requested=flows.c.snapshots_requested + 1)
                .returning(flows.c.next_step)
            )
            hint_after_commit(session, self._program.topic)
            next_step: int | None = await connection.scalar(counted)
            if next_step is None:
                raise await no_row(connection, self._program)
            return next_step

        return await self.database.transact(work, purpose="request a snapshot")

    async def _wait(self, asked_at: int) -> int:
        woken = asyncio.Event()
        with woken_by(self._program.frontier_topic, woken):
            while True:
                woken.clear()
                began = monotonic()
                if (version := await self._look(asked_at)) is not None:
                    return version
                await sleep(max(0.0, began + LOOK_EVERY_S - monotonic()))
                if not woken.is_set():
                    await rest(woken, POLL_S)

    async def _look(self, asked_at: int) -> int | None:
        try:
            return await self.database.read(
                "look for a snapshot", lambda connection: self._written(connection, asked_at)
            )
        except Exception as error:
            if not is_transient(error):
                raise
            return None

    async def _written(self, connection: AsyncConnection, asked_at: int) -> int | None:
        """Return the version of a snapshot that all shards have written; None: not yet."""
        program, flows = self._program, self._program.tables.flows.c
        is_kept = flows.kept_until > database_instant()
        found = select(flows.kept_snapshot, is_kept).where(flows.id == program.id)
        last, kept = tuple((await connection.execute(found)).one())
        lowest = await read_frontier(connection, program.tables, program.name) or 0
        if last is None or last <= asked_at:
            return None
        version = await self._version(connection, asked_at)
        if not kept or version != last:
            raise VersionNotFoundError(flow=program.name, version=version)
        return version if lowest >= version else None

    async def _version(self, connection: AsyncConnection, asked_at: int) -> int:
        """Return the version of the first snapshot cut since this reader asked."""
        steps = self._program.tables.steps.c
        found = select(func.min(steps.step)).where(
            steps.flow_id == self._program.id, steps.step >= asked_at, steps.snapshot
        )
        return (await connection.execute(found)).scalar_one() + 1  # type: ignore[no-any-return]

    async def _withdraw_request(self, request: asyncio.Task[int]) -> None:
        """Withdraw a request that may be committed behind the cancellation of its reader."""
        await self._withdraw(await request)

    async def _withdraw(self, asked_at: int) -> None:
        """Wait no longer; or read no more, if the snapshot was cut meanwhile."""
        flows = self._program.tables.flows

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            is_waiting = or_(flows.c.kept_snapshot.is_(None), flows.c.kept_snapshot <= asked_at)
            withdrawn = await connection.execute(
                update(flows)
                .where(flows.c.id == self._program.id, is_waiting)
                .values(snapshots_requested=flows.c.snapshots_requested - 1)
            )
            if withdrawn.rowcount == 0:
                await self._release(session, connection, await self._version(connection, asked_at))

        await self._at_the_end(work)

    async def _release(
        self, session: AsyncSession, connection: AsyncConnection, version: int
    ) -> None:
        flows = self._program.tables.flows
        own = and_(
            flows.c.id == self._program.id,
            # A later one has readers of its own.
            flows.c.kept_snapshot == version,
        )
        is_last = flows.c.kept_by <= 1
        values: dict[str, Any] = {
            "kept_by": flows.c.kept_by - 1,
            "kept_until": case((is_last, None), else_=flows.c.kept_until),
        }
        await connection.execute(update(flows).where(own).values(values))
        hint_after_commit(session, self._program.topic)

    async def _at_the_end(
        self, work: Callable[[AsyncSession, AsyncConnection], Awaitable[None]]
    ) -> None:
        try:
            await self.database.transact(work, purpose="end a snapshot")
        except Exception as error:
            if not is_transient(error):
                raise
            text = "%(flow)s: a snapshot stays until its time is over"
            logger.warning(text, {"flow": self._program.name}, exc_info=error)

    async def _reason(self, connection: AsyncConnection) -> str:
        seen = await look_at(connection, self._program)
        if seen is None:
            return (await absence_of(connection, self._program)).text
        if seen.state != "running":
            return f"the flow is {seen.state}"
        text = flow_text(seen)
        if text != NOTHING:
            return text
        return NOT_KNOWN_YET if any(one.is_held for one in seen.shards) else NO_HOLDER


# ---------------------------------------------------------------- snapshot


S = TypeVar("S")

PAGE_KEYS: Final = 1_000
"""Most states that are read in one transaction."""
PAGE_BYTES: Final = 1_048_576
"""Most bytes of these, unless it is one."""
PAGE_TIMEOUT: Final = timedelta(seconds=30)
"""How long that may take."""


class StateSnapshot:
    """The states of a flow at the start of one step; made by `StreamFlow.snapshot`.

    Attributes:
        step: all earlier steps are in it, of all shards, and no later one.
        is_closed: its block has ended.
    """

    def __init__(
        self,
        step: int,
        program: FlowProgram,
        handlers: Mapping[str, StageHandler],
        *,
        keeping: SnapshotKeeping,
    ) -> None:
        self.step = step
        self.is_closed = False
        self._program = program
        self._handlers = handlers
        self._keeping = keeping

    def __repr__(self) -> str:
        return f"<StateSnapshot of {self._program.name} at step {self.step}>"

    @overload
    def items(self, stage: KeyHandler[S, Any]) -> AsyncIterator[tuple[str, S]]: ...
    @overload
    def items(self, stage: BatchHandler[Any, S]) -> AsyncIterator[tuple[str, S]]: ...
    @overload
    def items(self, stage: str) -> AsyncIterator[tuple[str, Any]]: ...
    @overload
    def items(self, stage: str, type: type[S]) -> AsyncIterator[tuple[str, S]]: ...
    def items(self, stage: Any, type: Any = None) -> AsyncIterator[tuple[str, Any]]:  # noqa: A002
        """Return keys and their states, in the order of the keys. They are read page by page, each
        in a transaction of its own, and no session is open between two pages.

        Args:
            stage: the handler that keeps them, or its name.
            type: of the states, where no handlers are declared in this process.

        Raises:
            ConfigurationError: there is no such handler, or it keeps no states, or they are rows of
                the host.
            TypeError: values of `type` cannot be stored.
            VersionNotFoundError: while it is read: the snapshot is kept no longer.
            StoreClosedError: while it is read: the block has ended.
            ValueError: while it is read: a state is none of this type.
        """
        name = stage if isinstance(stage, str) else name_of(stage)
        return self._read(name, self._codec(name, stage, type))

    async def _read(self, name: str, codec: StateCodec) -> AsyncIterator[tuple[str, Any]]:
        after: str | None = None
        while page := await self._page(name, after):
            states = codec.decode_many([state.value for _, state in page])
            for (key, _), state in zip(page, states, strict=True):
                yield key, state
            after = page[-1][0]

    async def _page(self, name: str, after: str | None) -> list[tuple[str, KeyState]]:
        if self.is_closed:
            raise StoreClosedError(flow=self._program.name, version=self.step)

        async def work(connection: AsyncConnection) -> list[tuple[str, KeyState]]:
            page = await read_snapshot(
                connection,
                self._program.tables.state,
                self._program.id,
                name=name,
                version=self.step,
                after=after,
                most=PageBounds(PAGE_KEYS, PAGE_BYTES),
            )
            await self._keeping.check(connection, self.step)
            return page

        return await self._keeping.pages.read("read a snapshot", work)

    def _codec(self, name: str, stage: object, type_: Any) -> StateCodec:
        handler = self._handlers.get(name)
        flow = f"the flow {self._program.name!r}"
        if handler is None and self._handlers:
            names = ", ".join(self._handlers)
            raise ConfigurationError(f"{flow} has the handlers {names}, and none named {name!r}")
        if handler is None:
            if type_ is None:
                raise ConfigurationError(
                    f"{flow} has no handlers in this process: pass the type of the states, too"
                )
            return Codec(type_)
        if handler.kind == "fold":
            raise ConfigurationError(
                f"{name!r} of {flow} is a fold, whose states are rows of a table of the host: there"
                " is one of each, as of its last step, so read the table"
            )
        if handler.codec is None:
            raise ConfigurationError(f"{name!r} of {flow} keeps no states: pass state=... to it")
        if not isinstance(stage, str) and stage is not handler.call:
            raise ConfigurationError(f"{name!r} of {flow} is another function than {stage!r:.100}")
        if type_ is not None and Codec(type_).name != handler.codec.name:
            raise ConfigurationError(f"the states of {name!r} of {flow} are {handler.codec.name}")
        return handler.codec


@asynccontextmanager
async def snapshot_of(
    sessions: async_sessionmaker[AsyncSession],
    program: FlowProgram,
    *,
    handlers: Mapping[str, StageHandler],
    timeout: timedelta | float,
) -> AsyncIterator[StateSnapshot]:
    keeping = SnapshotKeeping(program, sessions)
    step = await keeping.acquire(timeout)
    snapshot = StateSnapshot(step, program, handlers, keeping=keeping)
    try:
        yield snapshot
    finally:
        snapshot.is_closed = True
        await keeping.release(step)
