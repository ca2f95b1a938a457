"""What a replica of a flow does while it dies, freezes or loses its connection; each story says
within which transactions.

The one idea: boundaries are counted within transactions of some purposes, and so the n-th one is
the same statement in each run, whatever else goes on beside it and however long that takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.pipelines.context import PipelineContext
from rowlock.stream_errors import CursorMoved
from rowlock.streams.shards import steering
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing import run_until_settled

from ...failpoints.stories import Scene
from . import host
from .host import Base, Click, Flow, Invoiced, Payment

__all__ = ["STORIES", "Base", "FlowStory"]

ACCOUNTS: Final = 5
PAYMENTS: Final = 12
CLICKS: Final = [
    [Click(f"a{n % ACCOUNTS}", 10 * batch + n) for n in range(4)] for batch in range(3)
]
"""What a producer adds, in transactions of its own."""
PRODUCER: Final = "p"
CONSUMER: Final = "c"

When = Callable[[PipelineContext[Any], str], bool]
"""Whether boundaries count in a transaction of a purpose."""
Sessions = async_sessionmaker[AsyncSession]


def payments(count: int = PAYMENTS) -> list[Payment]:
    """Return payments, the same each time."""
    return [
        Payment(account=f"a{n % ACCOUNTS}", payee=f"a{(n * 3 + 1) % ACCOUNTS}", cents=7 * n + 1)
        for n in range(count)
    ]


@contextmanager
def transactions_armed(
    scene: Scene, when: When, *, behind: Callable[[str], Awaitable[None]] | None = None
) -> Iterator[None]:
    """Count boundaries inside of the transactions of pipelines for which `when` holds.

    Args:
        scene: of the replica.
        when: asked before each transaction.
        behind: awaited behind each transaction that has ended well, with its purpose.
    """
    original: Any = PipelineContext.transact
    under_way = 0

    async def transact(context: Any, work: Any, *, purpose: str, **options: Any) -> Any:
        nonlocal under_way
        counts = when(context, purpose)
        under_way += counts
        scene.points.armed = under_way > 0
        try:
            result = await original(context, work, purpose=purpose, **options)
        finally:
            under_way -= counts
            scene.points.armed = under_way > 0
        if behind is not None:
            await behind(purpose)
        return result

    PipelineContext.transact = transact  # type: ignore[method-assign]
    try:
        yield
    finally:
        PipelineContext.transact = original  # type: ignore[method-assign]


def of(*purposes: str, skip: int = 0) -> Callable[[], When]:
    """Return what makes conditions for transactions of these purposes, but the first ones."""

    def new() -> When:
        passed = 0

        def is_one(context: PipelineContext[Any], purpose: str) -> bool:
            nonlocal passed
            passed += purpose in purposes
            return purpose in purposes and passed > skip

        return is_one

    return new


def never() -> When:
    """Return the condition for no transaction: the story arms its own."""
    return lambda *_: False


def at_the_end() -> When:
    """Return the condition for all that is done once the replica is to stop."""
    return lambda context, _: context.stop.is_given


async def settle(sessions: Sessions, flow: Flow, *, with_coordinator: bool = True) -> None:
    """Have a replica do all there is to do."""
    pipelines = flow.streams.pipelines()
    if not with_coordinator:
        pipelines = [one for one in pipelines if isinstance(one, FlowPipeline)]
    await run_until_settled(sessions, pipelines)


Play = Callable[[Scene, "FlowStory"], Awaitable[None]]


async def run(scene: Scene, story: FlowStory) -> None:
    """Do all there is to do, with nobody beside it unless that is what the story is about."""
    with transactions_armed(scene, story.when()):
        await settle(scene.sessions, story.flow(), with_coordinator=story.days > 0)


async def run_through_the_table(scene: Scene, story: FlowStory) -> None:
    """Do all there is to do, with messages that take the table."""
    original = steering.may_stay_in_memory
    steering.may_stay_in_memory = lambda *_, **__: False
    try:
        await run(scene, story)
    finally:
        steering.may_stay_in_memory = original


async def replay(scene: Scene, story: FlowStory) -> None:
    """Lose all leases behind some steps whose states are not written; die in what comes then."""
    flow, steps_written, is_lost = story.flow(), 0, False
    when = story.when()

    async def behind(purpose: str) -> None:
        nonlocal steps_written, is_lost
        steps_written += purpose == "write steps"
        if steps_written == STEPS_BEFORE_LOSS and not is_lost:
            is_lost = True
            shards = flow.streams.tables.shards
            free = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
            async with scene.sessions.begin() as session:
                await session.execute(update(shards).values(free))

    def is_one(context: PipelineContext[Any], purpose: str) -> bool:
        return is_lost and when(context, purpose)

    with transactions_armed(scene, is_one, behind=behind):
        await settle(scene.sessions, flow, with_coordinator=False)


STEPS_BEFORE_LOSS: Final = 2


async def append(scene: Scene, story: FlowStory) -> None:
    """Add events as a producer, which asks first how far it is."""
    flow = story.flow()
    log = flow.streams.logs["clicks"]
    with scene.armed():
        async with scene.sessions() as session:
            last = await log.last_seq(session, PRODUCER)
        for seq, events in enumerate(CLICKS):
            if last is None or seq > last:
                async with scene.sessions.begin() as session:
                    await log.append(session, events, producer=PRODUCER, seq=seq)


async def append_again(sessions: Sessions, story: FlowStory) -> None:
    """Add all events again, as a producer that has heard nothing; then do their steps."""
    flow = story.flow()
    for seq, events in enumerate(CLICKS):
        async with sessions.begin() as session:
            await flow.streams.logs["clicks"].append(session, events, producer=PRODUCER, seq=seq)
    await settle(sessions, flow)


async def invoice(sessions: Sessions, story: FlowStory) -> None:
    """Put each result on an invoice, and acknowledge its step with it."""
    seen = story.flow().flow.outputs["seen"]
    async for step in seen.consume(sessions, consumer=CONSUMER, follow=False):
        rows = [{"step": step.step, "account": row.key, "cents": row.value} for row in step.rows]
        try:
            async with sessions.begin() as session:
                await step.ack(session)
                await session.execute(insert(Invoiced), rows)
        except CursorMoved:
            return


async def consume(scene: Scene, story: FlowStory) -> None:
    """Die while results are consumed."""
    with scene.armed():
        await invoice(scene.sessions, story)


async def nothing_before(sessions: Sessions, story: FlowStory) -> None:
    """Have the rows of the story, and nothing done."""


async def all_done_before(sessions: Sessions, story: FlowStory) -> None:
    """Have all steps done already."""
    await settle(sessions, story.flow())


async def clicks_before(sessions: Sessions, story: FlowStory) -> None:
    """Have a log whose events are in steps already."""
    await append_again(sessions, story)


def resharded_before(wanted: int) -> Callable[[Sessions, FlowStory], Awaitable[None]]:
    """Return what has some steps done, more to do, and another number of shards asked for."""

    async def before(sessions: Sessions, story: FlowStory) -> None:
        flow = story.flow()
        await settle(sessions, flow)
        async with sessions.begin() as session:
            session.add_all(payments(4))
            await flow.flow.reshard(session, wanted)

    return before


async def finish(sessions: Sessions, story: FlowStory) -> None:
    """Be another replica."""
    await settle(sessions, story.flow())


@dataclass(frozen=True)
class FlowStory:
    """What a replica does, and who goes on.

    Attributes:
        name: for the test's id, and for the table; with the number of steps of a checkpoint where
            both kinds are tried.
        flow: declares the flow.
        when: makes the condition for transactions whose boundaries are tried.
        play: what is done.
        rows: what is put in before.
        before: what was done before, by a replica that has ended well.
        heir: what another replica, or a service, does afterwards.
        shards: how many there are at the end.
        days: that pass between `before` and `play`.
    """

    name: str
    flow: Callable[[], Flow]
    when: Callable[[], When] = never
    play_it: Play = run
    rows: Callable[[], Sequence[Any]] = payments
    before: Callable[[Sessions, FlowStory], Awaitable[None]] = nothing_before
    heir: Callable[[Sessions, FlowStory], Awaitable[None]] = finish
    shards: int = 2
    days: int = 0

    async def play(self, scene: Scene) -> None:
        """Be the replica that something happens to."""
        await self.play_it(scene, self)


WRITES: Final = of("write steps")
STORIES: Final = {
    story.name: story
    for story in (
        FlowStory(
            "creation",
            host.balances,
            of("look for a flow", "look where a flow begins", "create a flow"),
        ),
        FlowStory(
            "append",
            host.clicks,
            play_it=append,
            rows=list,
            heir=append_again,
        ),
        FlowStory("cut", host.balances, of("look for new rows", "cut a step")),
        FlowStory("read", host.balances, of("look at a flow", "read the rows of steps")),
        FlowStory("step-1", host.balances, WRITES),
        FlowStory("step-7", lambda: host.balances(7), WRITES),
        FlowStory(
            "checkpoint-7",
            lambda: host.balances(7, step_rows_max=2),
            of("write steps", skip=5),
            rows=lambda: payments(16),
        ),
        FlowStory(
            "replay-7",
            lambda: host.balances(7),
            of("look at a flow", "read the rows of steps", "write steps"),
            play_it=replay,
        ),
        FlowStory("release-7", lambda: host.balances(7), at_the_end),
        FlowStory(
            "split",
            lambda: host.balances(shards=1),
            of("split a shard"),
            before=resharded_before(2),
        ),
        FlowStory(
            "join",
            host.balances,
            of("join two shards"),
            before=resharded_before(1),
            shards=1,
        ),
        FlowStory("memory-1", host.ledger, WRITES),
        FlowStory("memory-7", lambda: host.ledger(7), WRITES),
        FlowStory(
            "table",
            host.ledger,
            of("send messages", "compare messages", "receive messages"),
            play_it=run_through_the_table,
        ),
        FlowStory(
            "expiry",
            host.clicks,
            of("delete what nobody needs"),
            rows=list,
            before=clicks_before,
            days=30,
        ),
        FlowStory(
            "ack",
            host.balances,
            play_it=consume,
            before=all_done_before,
            heir=invoice,
        ),
        FlowStory("fold", host.folded, WRITES),
        FlowStory("outbox", host.alarming, WRITES),
    )
}
