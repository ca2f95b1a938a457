"""The tests that a flow inherits: flows that hold to them, and typical ones that do not, with what
they do named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import randrange
from typing import Any
from unittest import SkipTest

import pytest

from rowlock.errors import PipelineError
from rowlock.streams import EventBatch, StepContext, Streams
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import StreamContract

from ...lengths import at_length
from . import house
from .house import Base, Payment, Visit

pytestmark = pytest.mark.either_database


class HasTables:
    @pytest.fixture
    async def rowlock_database_with_clock(
        self, database_with_clock: TemporaryDatabase
    ) -> TemporaryDatabase:
        await database_with_clock.create_tables(Base.metadata)
        return database_with_clock


class TestSessions(HasTables, StreamContract[Visit]):
    """A flow with timers, dead letters and a second stage could not be tested."""

    flow, pause = house.sessions, house.PAUSE
    if not at_length(usual=False, long=True):
        # Sixteen shards differ more, and another flow has two of them below.
        test_comes_to_the_same_in_one_shard = test_comes_to_the_same_in_two_shards = None

    def events(self) -> list[Visit]:
        return house.some_visits()[:12]


class Balances(StreamContract[Payment]):
    flow, count = house.balances, 24

    def events(self) -> list[Payment]:
        return house.some_payments()[: self.count]


class Sums(Balances):
    flow = house.sums


class Tops(Balances):
    """A flow over the results of another one."""

    flow, before = house.tops, (house.sums,)


@pytest.mark.parametrize(
    ("contract", "name"),
    [
        (Balances, "test_answers_of_the_database_may_be_lost"),
        (Balances, "test_an_event_that_fails_loses_no_other"),
        (Sums, "test_replays_come_out_as_before"),
        (Sums, "test_an_event_that_fails_loses_no_other"),
        (Tops, "test_comes_to_the_same_in_two_shards"),
    ],
)
async def test_flows_of_each_kind_hold_to_it(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
    contract: type[StreamContract[Any]],
    name: str,
) -> None:
    """A fold, a batch handler or a flow over another one could not be tested."""
    database = rowlock_sqlite_database_with_clock
    await database.create_tables(Base.metadata)
    await getattr(contract(), name)(database)


async def test_what_does_not_apply_is_skipped(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A fold would fail for a mode that it cannot have, a class of a function for its place."""

    class Local(Balances):
        pass

    for contract, name in (
        (Balances(), "test_replays_come_out_as_before"),
        (Local(), "test_another_process_comes_to_the_same"),
    ):
        with pytest.raises(SkipTest):
            await getattr(contract, name)(rowlock_sqlite_database_with_clock)


# ---------------------------------------------------------------- flows that do not


Handler = Callable[..., Any]
RATE = {"of": 1}
"""What a handler keeps to itself."""


@dataclass
class Counted:
    cents: int

    def __post_init__(self) -> None:
        self.cents += 1


def asks_the_clock(step: StepContext, key: str, sum_: int | None, events: list[Any]) -> int:
    return (sum_ or 0) + datetime.now(UTC).year


def draws(step: StepContext, key: str, sum_: int | None, events: list[Any]) -> int:
    return (sum_ or 0) + randrange(1, 100)


def remembers(step: StepContext, key: str, sum_: int | None, events: list[Any]) -> int:
    RATE["of"] += 1
    return (sum_ or 0) + RATE["of"]


def follows_another(step: StepContext, key: str, sum_: int | None, events: list[Any]) -> int:
    """Add more for all keys once it was called for one of them."""
    if key == "a0":
        RATE["of a0"] = 100
    return (sum_ or 0) + len(events) + RATE.get("of a0", 0)


def sums_over_keys(
    step: StepContext, batch: EventBatch[Any], states: dict[str, int]
) -> dict[str, int]:
    """Add what all keys of the batch have to each."""
    whole = sum(batch.column("cents"))
    return {key: states.get(key, 0) + whole for key in batch.counts()}


def counts_up(step: StepContext, key: str, state: Counted | None, events: list[Any]) -> Counted:
    """Return a state that is another one when it is read."""
    return Counted(len(events))


def sends_what_is_together(step: StepContext, batch: EventBatch[Any], states: Any) -> None:
    """Send each key how many keys there are with it."""
    for key in batch.counts():
        step.send(OUTER[0], key, len(batch.counts()))


OUTER: list[Any] = []


def contract_of(
    handler: Handler, *, state: Any = int, poison: Any = "park", events: int = 9
) -> StreamContract[Any]:
    flow = Streams(Base).flow("bad", Payment, shards=1)
    if "batch" not in inspect.signature(handler).parameters:
        flow.by_key(state=state, poison=poison)(handler)
    elif state is not None:
        flow.batch(state=state)(handler)
    else:
        OUTER[:] = [flow.exchange("outer", int)]
        flow.batch()(handler)

        @OUTER[0].by_key(state=int)
        def keep(step: StepContext, key: str, last: int | None, events: list[int]) -> int:
            return 0

    class Bad(Balances):
        count = events

    contract = Bad()
    contract.flow = flow
    return contract


ALONE = "test_handlers_depend_on_their_arguments_alone"
FAILS = "test_an_event_that_fails_loses_no_other"
SIXTEEN = "test_comes_to_the_same_in_sixteen_shards"


@pytest.mark.parametrize(
    ("handler", "options", "test", "text"),
    [
        (asks_the_clock, {}, ALONE, "return (sum_ or 0) + datetime.now(UTC).year': use step.now"),
        (draws, {}, ALONE, "randrange(1, 100)': use step.random(key)"),
        (draws, {}, "test_comes_to_the_same_in_one_shard", "'draws' calls random.getrandbits"),
        (remembers, {}, "test_comes_to_the_same_in_one_shard", "no variables that stay"),
        (remembers, {"poison": "dead_letter"}, FAILS, "comes to something else without that key"),
        (follows_another, {"poison": "dead_letter"}, FAILS, "changes states of others"),
        (sums_over_keys, {"events": 60}, SIXTEEN, "in a batch no sums over keys"),
        (
            sends_what_is_together,
            {"state": None, "events": 60},
            SIXTEEN,
            "the exchange 'outer' has",
        ),
        (counts_up, {"state": Counted}, "test_states_are_what_was_stored", "is stored as {"),
    ],
)
async def test_a_flow_that_breaks_it_is_found(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
    handler: Handler,
    options: dict[str, Any],
    test: str,
    text: str,
) -> None:
    """A handler would pass whose steps cannot be done again, and nobody be told what it does."""
    database = rowlock_sqlite_database_with_clock
    await database.create_tables(Base.metadata)
    with pytest.raises(AssertionError) as raised:
        await getattr(contract_of(handler, **options), test)(database)
    assert text in str(raised.value)


async def test_replays_that_differ_are_found(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A flow would be parked in production by its first replay."""
    database = rowlock_sqlite_database_with_clock
    await database.create_tables(Base.metadata)
    with pytest.raises(PipelineError, match="its replay came out otherwise"):
        await contract_of(draws, events=60).test_replays_come_out_as_before(database)


class Unordered(Balances):
    """A handler that goes by the order of a set."""

    flow = house.unordered


class Scattered(Balances):
    """A handler that hands out the same in the order of a set."""

    flow = house.scattered


@pytest.mark.parametrize(
    ("contract", "text"),
    [
        (Scattered, "in another order"),
        *at_length([], [(Unordered, "something else")]),
    ],
)
async def test_the_order_of_a_set_is_found(
    rowlock_sqlite_database_with_clock: TemporaryDatabase, contract: type[Balances], text: str
) -> None:
    """Two replicas would come to different results, and each test in one process pass."""
    database = rowlock_sqlite_database_with_clock
    await database.create_tables(Base.metadata)
    with pytest.raises(AssertionError, match=f"{text}.* sort what comes out of a set"):
        await contract().test_another_process_comes_to_the_same(database)


async def test_what_a_host_has_to_say(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A test that tests nothing would pass, or the host not be told what is missing."""
    database = rowlock_sqlite_database_with_clock
    await database.create_tables(Base.metadata)

    class Silent(StreamContract[Payment]):
        flow = house.balances

    class Empty(Silent):
        def events(self) -> list[Payment]:
            return []

    class Strange(Silent):
        def events(self) -> list[Any]:
            return [Visit("p1", "page")]

    class Short(Silent):
        flow = house.sums

        def events(self) -> list[Payment]:
            return [Payment(account="a", cents=1)]

    name = "test_comes_to_the_same_in_one_shard"
    for contract, kind, text in (
        (Silent(), TypeError, "override events"),
        (Empty(), AssertionError, "returned none"),
        (Strange(), TypeError, "0 logs are read.*override add"),
    ):
        with pytest.raises(kind, match=text):
            await getattr(contract, name)(database)
    with pytest.raises(AssertionError, match="return more events"):
        await Short().test_replays_come_out_as_before(database)
