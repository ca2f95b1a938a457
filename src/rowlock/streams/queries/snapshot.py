"""`StreamFlow.snapshot`: the states of all shards at the start of one step, while they do the next
ones.

Not here: rows that a fold has written. They are the host's own, and there is one of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.errors import ConfigurationError
from rowlock.stream_errors import StoreClosedError
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    BatchHandler,
    KeyHandler,
    StageHandler,
    StateCodec,
    name_of,
)
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.snapshot_keeping import SnapshotKeeping
from rowlock.streams.state.store import PageBounds, read_snapshot

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

        async def work(
            session: AsyncSession, connection: AsyncConnection
        ) -> list[tuple[str, KeyState]]:
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

        return await self._keeping.transact(
            work, purpose="read a snapshot", writes=False, timeout=PAGE_TIMEOUT
        )

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
    """Take a snapshot of a flow; see `StreamFlow.snapshot`."""
    keeping = SnapshotKeeping(program, sessions)
    step = await keeping.acquire(timeout)
    snapshot = StateSnapshot(step, program, handlers, keeping=keeping)
    try:
        yield snapshot
    finally:
        snapshot.is_closed = True
        await keeping.release(step)
