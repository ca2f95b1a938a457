"""A flow with events of a test: run in steps that are small, with what may befall it, and compared.

Not here: the tests that a host inherits (``contract.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import events
from rowlock.streams.computing.handlers import StateCodec
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.events import ShardReplayed
from rowlock.streams.flow import StreamFlow
from rowlock.streams.inputs.event_log import APPEND_EVENTS_MAX, EventLog
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing.crashes.failpoints import (
    Boundary,
    CommittedWrites,
    Failpoints,
    lose_connection,
)
from rowlock.testing.databases.temporary import TemporaryDatabase
from rowlock.testing.stepping import run_until_settled
from rowlock.testing.streams.hidden_inputs import HiddenInputs
from rowlock.testing.streams.recorded import SHOWN_MAX, FlowRecord
from rowlock.testing.streams.running import (
    connected,
    flow_pipeline,
    read_reference,
    recorded,
    run_flow,
)

PORTIONS: Final = 3  # transactions in which events are added, with steps between them
STEPS: Final = 12  # least steps for the events, by default
ANSWERS: Final = 3  # of so many answers to a COMMIT, one is lost

Add: TypeAlias = Callable[[AsyncSession, Sequence[Any]], Awaitable[None]]


async def add_events(
    session: AsyncSession, events: Sequence[Any], *, flows: Sequence[StreamFlow[Any]]
) -> None:
    """Add rows to their tables, and other events to the one log that flows read, if it is one."""
    rows = [one for one in events if inspect(type(one), raiseerr=False) is not None]
    session.add_all(rows)
    others = [one for one in events if inspect(type(one), raiseerr=False) is None]
    if not others:
        return
    sources = {id(one): one for flow in flows for one in flow.sources.values()}
    logs = [one for one in sources.values() if isinstance(one, EventLog)]
    if len(logs) != 1:
        raise TypeError(
            f"{len(logs)} logs are read, so a {type(others[0]).__name__} may be of none: override"
            " add(session, events), and append each event to its log"
        )
    for begin in range(0, len(others), APPEND_EVENTS_MAX):
        await logs[0].append(session, others[begin : begin + APPEND_EVENTS_MAX])


@dataclass
class FlowTrial:
    """A flow on a database of its own; `replayed` counts steps that were done again."""

    database: TemporaryDatabase
    flow: StreamFlow[Any]
    before: Sequence[StreamFlow[Any]]
    events: Sequence[Any]
    add: Add
    pause: timedelta
    steps: int = STEPS
    replayed: int = field(default=0, init=False)

    @property
    def sessions(self) -> async_sessionmaker[AsyncSession]:
        return self.database.session_factory

    async def run(
        self,
        *,
        shards: int | None = None,
        checkpoint: Checkpoint | None = None,
        lose_answers: bool = False,
    ) -> FlowRecord:
        """Add the events, portion by portion, and do the steps of each."""
        changes: dict[str, Any] = {"shards": shards, "checkpoint": checkpoint}
        losing = _LostAnswers(self.flow.program) if lose_answers else None
        size = -(-len(self.events) // PORTIONS)

        def note(_event: events.Event) -> None:
            self.replayed += 1

        unsubscribe = events.subscribe(note, ShardReplayed)
        try:
            for begin in range(0, len(self.events), size):
                await self.add_some(self.events[begin : begin + size])
                with Failpoints(self.database.engine, note=losing):
                    await self.work(**changes)
                self.pass_time(self.pause)
            # What is due by now.
            await self.work(**changes)
        finally:
            unsubscribe()
        return await recorded(self.sessions, self.flow)

    async def add_some(self, events: Sequence[Any]) -> None:
        """Add events in a transaction, and have the flows before do their steps."""
        async with self.sessions.begin() as session:
            await self.add(session, events)
        for flow in self.before:
            await run_flow(self.sessions, flow)

    async def work(
        self, sessions: async_sessionmaker[AsyncSession] | None = None, **changes: Any
    ) -> None:
        """Do all steps for which there is something now; `changes` as for `flow_pipeline`."""
        own = self.sessions if sessions is None else sessions
        await run_until_settled(own, [self.pipeline(**changes)])

    def pipeline(self, **changes: Any) -> FlowPipeline:
        """Return a new pipeline of the flow, whose steps are small."""
        rows = max(1, len(self.events) // self.steps)
        settings = self.flow.program.settings.model_copy(update={"step_rows_max": rows})
        return flow_pipeline(self.flow, **{"settings": settings, **changes})

    def pass_time(self, time: timedelta) -> None:
        if self.database.clock is not None:
            self.database.clock.advance(time)

    async def reference(
        self,
        program: FlowProgram | None = None,
        *,
        shards: int = 1,
        watched: HiddenInputs | None = None,
    ) -> FlowRecord:
        """Return what the recorded steps come to in one loop; `program` has other handlers."""
        own = self.flow.program if program is None else program
        looped = own if watched is None else watched.watched(own)
        return await connected(
            self.sessions, own, lambda connection: read_reference(connection, looped, shards=shards)
        )

    def changed_by_storing(self, record: FlowRecord) -> list[str]:
        """Return which states, results and messages storing changes, in words."""
        program = self.flow.program
        codecs = {stage.name: stage.codec for stage in program.stages}
        kinds = [
            *(
                (f"the state of {key!r} in {name!r}", codecs[name], state)
                for name, states in record.states.items()
                for key, state in states.items()
            ),
            *(
                (f"a result of {name!r}", program.outputs[name].codec, one.value)
                for name, results in record.results.items()
                for one in results
            ),
            *(
                (f"a message to {each.name!r}", each.codec, one.value)
                for each in program.exchanges
                for one in record.messages[each.name]
            ),
        ]
        found = (_changed(what, codec, value) for what, codec, value in kinds)
        return [text for text in found if text is not None][:SHOWN_MAX]


class _LostAnswers:
    """Cuts connections behind the COMMIT of some writes of steps."""

    def __init__(self, program: FlowProgram) -> None:
        parts = program.tables.parts.name
        self._are_written = CommittedWrites(lambda sql: "INSERT" in sql and parts in sql)
        self._count = 0

    def __call__(self, boundary: Boundary) -> None:
        if self._are_written(boundary):
            self._count += 1
            if self._count % ANSWERS == 0:
                lose_connection(boundary)


def _changed(what: str, codec: StateCodec | None, value: Any) -> str | None:
    assert codec is not None
    text = codec.encode(value)
    (again,) = codec.decode_many([text])
    after = codec.encode(again)
    return None if after == text else f"{what} is stored as {text}, and read as {after}"
