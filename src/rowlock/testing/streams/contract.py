"""What every flow should be tested for, to be inherited: the same in each layout, replays that come
out as they did, events that fail, and handlers that depend on nothing but their arguments.

A host writes a test class that says which flow it is and how its events are made; the tests come
with it. They are plain ``async def`` methods, for pytest-asyncio in auto mode or anyio's plugin.

    class TestBalances(StreamContract[Payment]):
        flow = balances

        def events(self) -> list[Payment]:
            rng = Random(1)
            return [Payment(account=f"a{rng.randrange(9)}", cents=n) for n in range(200)]

It needs a fixture `rowlock_database_with_clock`, with the tables of the host: the plugin has it,
for both databases.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps
from importlib import import_module
from inspect import getfile
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from unittest import SkipTest

from sqlalchemy import URL, inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import events
from rowlock.errors import PipelineError
from rowlock.streams.computing.compute import DEAD_LETTERS
from rowlock.streams.computing.handlers import StageHandler, StateCodec
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.events import ShardReplayed
from rowlock.streams.flow import StreamFlow
from rowlock.streams.inputs.event_log import APPEND_EVENTS_MAX, EventLog
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing.databases import TemporaryDatabase
from rowlock.testing.failpoints import Boundary, CommittedWrites, Failpoints, lose_connection
from rowlock.testing.stepping import run_until_settled
from rowlock.testing.streams.hidden_inputs import HiddenInputs
from rowlock.testing.streams.recorded import SHOWN_MAX, FlowRecord, read_shards
from rowlock.testing.streams.running import (
    connected,
    flow_pipeline,
    read_reference,
    recorded,
    reference,
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
        losing = _lost_answers(self.flow.program) if lose_answers else None
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


def _lost_answers(program: FlowProgram) -> Callable[[Boundary], None]:
    """Return what cuts connections behind the COMMIT of some writes of steps."""
    parts, numbers = program.tables.parts.name, count(1)
    are_written = CommittedWrites(lambda sql: "INSERT" in sql and parts in sql)

    def lose(boundary: Boundary) -> None:
        if are_written(boundary) and next(numbers) % ANSWERS == 0:
            lose_connection(boundary)

    return lose


def _changed(what: str, codec: StateCodec | None, value: Any) -> str | None:
    assert codec is not None
    text = codec.encode(value)
    (again,) = codec.decode_many([text])
    after = codec.encode(again)
    return None if after == text else f"{what} is stored as {text}, and read as {after}"


E = TypeVar("E")

EVERY_SEVEN = Checkpoint(steps=7)
_ARGUMENTS = (
    "A handler is to depend on its arguments alone, and on what it gets of one key alone: no"
    " variables that stay between its calls, and in a batch no sums over keys"
)
_ORDER = (
    "The order of a set, and hash(), are others in each process: sort what comes out of a set, and"
    " use hashlib"
)


class StreamContract(Generic[E]):
    """The tests that a flow inherits.

    Attributes:
        flow: the flow under test.
        before: flows over whose outputs it is, the first one first.
        pause: how much time passes behind each third of the events, so that timers become due.
    """

    flow: StreamFlow[Any]
    before: Sequence[StreamFlow[Any]] = ()
    pause: timedelta = timedelta(0)

    def events(self) -> Sequence[E]:
        """Return new events of several keys, the same each time, with which the handlers succeed:
        rows of the host's tables, or events of a log. A hundred are enough.
        """
        raise TypeError(f"{type(self).__name__} must say what events are: override events()")

    async def add(self, session: AsyncSession, events: Sequence[E]) -> None:
        """Add events: rows to their tables, others to the one log that the flow reads. Joins the
        caller's transaction.
        """
        await add_events(session, events, flows=[*self.before, self.flow])

    async def test_comes_to_the_same_in_one_shard(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """Results or states would not follow from the events."""
        await self._compare(rowlock_database_with_clock, shards=1)

    async def test_comes_to_the_same_in_two_shards(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """Results would depend on how many shards there are."""
        await self._compare(rowlock_database_with_clock, shards=2)

    async def test_comes_to_the_same_in_sixteen_shards(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """Results, or messages to further stages, would depend on which keys are together."""
        trial = await self._compare(rowlock_database_with_clock, shards=16)
        expected = await trial.reference()
        for shards in (2, 16):
            found = (await trial.reference(shards=shards)).differences(expected)
            assert not found, (
                f"{self.flow.name}: divided among {shards} shards, the same steps come to something"
                f" else: {'; '.join(found)}. {_ARGUMENTS}"
            )

    async def test_answers_of_the_database_may_be_lost(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """Where states are written with every step, a lost connection would make a difference."""
        await self._compare(rowlock_database_with_clock, lose_answers=True)

    async def test_replays_come_out_as_before(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A shard would be parked when its steps are done again: results have other digests."""
        if self.flow.program.folds:
            raise SkipTest(f"{self.flow.name} folds, so its states are written with every step")
        trial = await self._compare(
            rowlock_database_with_clock, lose_answers=True, checkpoint=EVERY_SEVEN
        )
        assert trial.replayed, (
            f"{self.flow.name}: no step was done again, so nothing is known: return more events"
        )

    async def test_an_event_that_fails_loses_no_other(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A key that fails would take others with it, not be set aside, or be lost for ever."""
        trial = self._trial(rowlock_database_with_clock)
        await PoisonedFlow(trial).check()

    async def test_handlers_depend_on_their_arguments_alone(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A handler asks the clock, draws a number, or keeps something: replays differ."""
        trial = self._trial(rowlock_database_with_clock)
        await trial.run()
        inputs = HiddenInputs()
        first = await trial.reference(watched=inputs)
        assert not inputs.found, f"{self.flow.name}: {inputs}"
        found = (await trial.reference()).differences(first)
        assert not found, (
            f"{self.flow.name}: done twice, the same steps come to something else:"
            f" {'; '.join(found)}. {_ARGUMENTS}"
        )

    async def test_another_process_comes_to_the_same(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A replica that goes on with the steps of another one would come to something else."""
        place = place_of(type(self))
        if place is None:
            raise SkipTest(f"another process cannot import {type(self).__qualname__}")
        trial = await self._compare(rowlock_database_with_clock)
        elsewhere = await reference_elsewhere(place, rowlock_database_with_clock.url)
        here = await trial.reference()
        found = elsewhere.differences(here)
        assert not found, (
            f"{self.flow.name}: another process comes to something else: {'; '.join(found)}."
            f" {_ORDER}"
        )
        moved = [name for name, own in here.digests.items() if elsewhere.digests[name] != own]
        assert not moved, (
            f"{self.flow.name}: another process hands out the same in another order, at"
            f" {', '.join(moved)}. {_ORDER}"
        )

    async def test_states_are_what_was_stored(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A handler would be given another state than it returned."""
        trial = await self._compare(rowlock_database_with_clock)
        found = trial.changed_by_storing(await trial.reference())
        assert not found, (
            f"{self.flow.name}: {'; '.join(found)}. Have the class make an equal value of its own"
            " fields: its constructor or __post_init__ changes them"
        )

    def _trial(self, database: TemporaryDatabase) -> FlowTrial:
        events = list(self.events())
        assert events, "events() returned none"
        return FlowTrial(database, self.flow, self.before, events, self.add, self.pause)

    async def _compare(self, database: TemporaryDatabase, **options: Any) -> FlowTrial:
        trial = self._trial(database)
        record = await trial.run(**options)
        inputs = HiddenInputs()
        found = record.differences(await trial.reference(watched=inputs))
        assert not found, (
            f"{self.flow.name} comes to something else than one loop over the same steps:"
            f" {'; '.join(found)}. {str(inputs) or _ARGUMENTS}"
        )
        return trial


SHARDS: Final = 4


class PoisonError(Exception):
    pass


@dataclass
class PoisonedFlow:
    """A flow whose first handler fails for one key: the first that it gets."""

    trial: FlowTrial
    key: Any = field(default=None, init=False)

    async def check(self) -> None:
        """Check that the key is set aside, or its shard parked, and nothing else is lost."""
        flow, program = self.trial.flow, self.trial.flow.program
        poisoned = self._poisoned(program)
        changes: dict[str, Any] = {
            # Shards that send each other messages wait for one that is parked.
            "shards": 1 if program.has_exchange else SHARDS,
            "settings": program.settings.model_copy(update={"failures_max": 1}),
        }
        await self.trial.add_some(self.trial.events)
        await self.trial.work(**changes, stages=poisoned.stages)
        if program.stages[0].dead_letters:
            await self._check_set_aside(poisoned)
            return
        shards = await connected(self.trial.sessions, program, lambda c: read_shards(c, program))
        parked = [one.parked for one in shards if one.parked is not None]
        assert len(parked) == 1, f"{flow.name}: {len(parked)} shards are parked, not that of a key"
        assert PoisonError.__name__ in parked[0], f"{flow.name}: {parked[0]}"
        async with self.trial.sessions.begin() as session:
            await flow.unpark(session)
        await self.trial.work(**changes)
        record = await recorded(self.trial.sessions, flow)
        self._compare(record, await self.trial.reference(), "once its handler is mended")

    async def _check_set_aside(self, poisoned: FlowProgram) -> None:
        flow = self.trial.flow
        record = await recorded(self.trial.sessions, flow)
        keys = {one.key for one in record.results[DEAD_LETTERS]}
        assert keys == {self.key}, f"{flow.name}: dead letters are of {keys}, not of {self.key!r}"
        self._compare(record, await self.trial.reference(poisoned), "without that key")
        if not poisoned.has_exchange:
            whole = await self.trial.reference()
            name = poisoned.stages[0].name
            sound = {key: own for key, own in whole.states[name].items() if key != self.key}
            left = record.states[name], sound
            assert left[0] == left[1], (
                f"{flow.name}: a key that fails changes states of others: {left[0]}, not {left[1]}"
            )

    def _compare(self, record: FlowRecord, expected: FlowRecord, when: str) -> None:
        found = record.differences(expected)
        assert not found, (
            f"{self.trial.flow.name}, whose handler fails for {self.key!r}, comes to something else"
            f" {when}: {'; '.join(found)}"
        )

    def _poisoned(self, program: FlowProgram) -> FlowProgram:
        first = program.stages[0]
        call = first.call

        @wraps(call, updated=())
        def failing(*args: Any) -> Any:
            keys = _keys_of(first, args)
            if self.key is None and keys:
                self.key = keys[0]
            if self.key in keys:
                raise PoisonError(f"the key {self.key!r}")
            return call(*args)

        return replace(program, stages=[replace(first, call=failing), *program.stages[1:]])


def _keys_of(stage: StageHandler, args: tuple[Any, ...]) -> list[Any]:
    if stage.kind == "batch":
        return list(args[1].keys)
    return [tuple(args[1].key.values()) if stage.kind == "fold" else args[1]]


SEEDS = ("1", "2")  # of hashes; the one that is not this process's is used


class ClassPlace(NamedTuple):
    """Where another process finds a class."""

    module: str
    file: str
    name: str


def place_of(cls: type[Any]) -> ClassPlace | None:
    """Return where a class is found; None if it is made by a function."""
    if "<locals>" in cls.__qualname__:
        return None
    return ClassPlace(cls.__module__, getfile(cls), cls.__qualname__)


async def reference_elsewhere(place: ClassPlace, url: URL) -> FlowRecord:
    """Return the reference of the `flow` of a class, computed in another process."""
    seed = next(one for one in SEEDS if one != os.environ.get("PYTHONHASHSEED"))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", f"from {__name__} import compute; compute()"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    task = place, url.render_as_string(hide_password=False)
    answer, errors = await child.communicate(pickle.dumps(task))
    if child.returncode:
        raise PipelineError(f"another process cannot test {place.name}: {errors.decode()}")
    record: FlowRecord = pickle.loads(answer)
    return record


def compute() -> None:
    """The program of that process."""
    place, url = pickle.load(sys.stdin.buffer)
    answer, sys.stdout = sys.stdout, sys.stderr
    found: Any = _module(place)
    for name in place.name.split("."):
        found = getattr(found, name)
    pickle.dump(asyncio.run(_read(found().flow, url)), answer.buffer)


def _module(place: ClassPlace) -> ModuleType:
    try:
        return import_module(place.module)
    except ModuleNotFoundError:
        # A runner of tests imports modules of folders that are on no path.
        sys.path.append(str(Path(place.file).parents[place.module.count(".")]))
        return import_module(place.module)


async def _read(flow: StreamFlow[Any], url: str) -> FlowRecord:
    engine = create_async_engine(url)
    try:
        return await reference(async_sessionmaker(engine), flow)
    finally:
        await engine.dispose()
