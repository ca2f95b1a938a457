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

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar
from unittest import SkipTest

from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.testing.databases.temporary import TemporaryDatabase
from rowlock.testing.streams.another_process import place_of, reference_elsewhere
from rowlock.testing.streams.hidden_inputs import HiddenInputs
from rowlock.testing.streams.poison import PoisonedFlow
from rowlock.testing.streams.trial import FlowTrial, add_events

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
        """Where states are written every seven steps, a shard would be parked when its steps are
        done again: their results have other digests.
        """
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
        """A key that fails would take others with it, not be set aside as declared, or be lost
        once its handler is mended.
        """
        trial = self._trial(rowlock_database_with_clock)
        await PoisonedFlow(trial).check()

    async def test_handlers_depend_on_their_arguments_alone(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """A replay would come out otherwise: a handler asks the clock, draws a number, or keeps
        something to itself.
        """
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
