"""What replicas, producers and consumers of a flow do: before something happens, while it happens,
and as heirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError

from rowlock import PipelineManager, VersionNotFoundError
from rowlock.dispatch import Completed, DispatchPipeline, LoopEngine, Task
from rowlock.errors import TransactionTimeout
from rowlock.pipelines.context import PipelineContext
from rowlock.stream_errors import CursorMoved
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing import run_until_settled

from ...failpoints.stories import Scene
from .host import Alarm, Click, Flow, Frozen, Invoiced, Payment, Told
from .story import Act, FlowStory, Sessions, transactions_armed

ACCOUNTS: Final = 5
PAYMENTS: Final = 12
CLICKS: Final = [
    [Click(f"a{n % ACCOUNTS}", 10 * batch + n) for n in range(4)] for batch in range(3)
]
"""What a producer adds, in transactions of its own."""
PRODUCER: Final = "p"
CONSUMER: Final = "c"
SNAPSHOT_S_MAX: Final = 120
"""Longer than it takes, also on a machine that does much else. **Unit** seconds."""
READ_AGAIN_MAX: Final = 20
"""So often at most a reader begins again whose look took longer than a look may."""
STEPS_BEFORE_LOSS: Final = 2
"""So many transactions of steps are written before a replica loses its leases."""


def payments(count: int = PAYMENTS) -> list[Payment]:
    return [
        Payment(account=f"a{n % ACCOUNTS}", payee=f"a{(n * 3 + 1) % ACCOUNTS}", cents=7 * n + 1)
        for n in range(count)
    ]


async def settle(sessions: Sessions, flow: Flow, *, with_coordinator: bool = True) -> None:
    pipelines = flow.streams.pipelines()
    if not with_coordinator:
        pipelines = [one for one in pipelines if isinstance(one, FlowPipeline)]
    await run_until_settled(sessions, pipelines)


async def run(scene: Scene, story: FlowStory) -> None:
    """Do all there is to do, with nobody beside it unless that is what the story is about."""
    with transactions_armed(scene, story.when()):
        await settle(scene.sessions, story.flow(), with_coordinator=story.days > 0)


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


async def append(scene: Scene, story: FlowStory) -> None:
    """Add events as a producer, which asks first how far it is."""
    flow = story.flow()
    log = flow.streams.logs["clicks"]
    with scene.armed():
        async with scene.sessions.begin() as session:
            last = await log.last_seq(session, PRODUCER)
        for seq, events in enumerate(CLICKS):
            if last is None or seq > last:
                async with scene.sessions.begin() as session:
                    await log.append(session, events, producer=PRODUCER, seq=seq)


async def append_again(sessions: Sessions, story: FlowStory) -> None:
    flow = story.flow()
    for seq, events in enumerate(CLICKS):
        async with sessions.begin() as session:
            await flow.streams.logs["clicks"].append(session, events, producer=PRODUCER, seq=seq)
    await settle(sessions, flow)


async def invoice(sessions: Sessions, story: FlowStory) -> None:
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
    with scene.armed():
        await invoice(scene.sessions, story)


async def deliver(scene: Scene, story: FlowStory) -> None:
    with transactions_armed(scene, story.when()):
        await settle_and_deliver(scene.sessions, story)


async def settle_and_deliver(sessions: Sessions, story: FlowStory) -> None:
    """Do steps and deliver their results to the outside, which knows each key once."""

    async def tell(task: Task[Alarm]) -> AsyncIterator[Completed]:
        row = {"key": task.row.dedup_key, "account": task.row.account, "cents": task.row.cents}
        with suppress(IntegrityError):
            async with sessions.begin() as session:
                await session.execute(insert(Told).values(row))
        yield Completed()

    mails = DispatchPipeline(Alarm, handler=tell, engine=LoopEngine(4))
    await run_until_settled(sessions, [*story.flow().streams.pipelines(), mails])


async def read_snapshot(sessions: Sessions, flow: Flow) -> None:
    """Put down what a snapshot has, which the flow has gone on behind meanwhile."""
    async with flow.flow.snapshot(sessions, timeout=SNAPSHOT_S_MAX) as snapshot:
        async with sessions.begin() as session:
            session.add_all(later := payments(4))
        await flow.flow.wait_for(sessions, later[-1], timeout=SNAPSHOT_S_MAX)
        rows = [
            {"step": snapshot.step, "account": key, "cents": cents}
            async for key, cents in snapshot.items("add", int)
        ]
    async with sessions.begin() as session:
        await session.execute(insert(Frozen), rows)


TOLD_TO_A_READER: Final = (VersionNotFoundError, TransactionTimeout)
"""What a reader is told that was frozen for long: what it reads is gone, or its transaction did not
end in time. It has read nothing that is wrong.
"""


async def lose_a_reader(scene: Scene, story: FlowStory) -> None:
    """Die while a snapshot is read that a replica has made."""
    flow = story.flow()
    async with PipelineManager(scene.sessions, flow.streams.pipelines()):
        with scene.points.armed_here(), suppress(*TOLD_TO_A_READER):
            await read_snapshot(scene.sessions, flow)


async def lose_a_writer(scene: Scene, story: FlowStory) -> None:
    """Die while steps are done around a snapshot that is read."""
    flow = story.flow()
    with transactions_armed(scene, story.when()):
        async with PipelineManager(scene.sessions, flow.streams.pipelines()):
            with suppress(*TOLD_TO_A_READER):
                await read_snapshot(scene.sessions, flow)


async def read_again(sessions: Sessions, story: FlowStory) -> None:
    """Be another reader, beside another replica; a starved one begins again."""
    flow = story.flow()
    async with PipelineManager(sessions, flow.streams.pipelines()):
        for is_last in (*[False] * READ_AGAIN_MAX, True):
            try:
                await read_snapshot(sessions, flow)
            except TransactionTimeout:
                if is_last:
                    raise
            else:
                break
    await settle(sessions, flow)


async def nothing_before(sessions: Sessions, story: FlowStory) -> None:
    """Have the rows of the story, and nothing done."""


async def all_done_before(sessions: Sessions, story: FlowStory) -> None:
    await settle(sessions, story.flow())


async def clicks_before(sessions: Sessions, story: FlowStory) -> None:
    await append_again(sessions, story)


def resharded_before(wanted: int) -> Act:
    """Return what has some steps done, more to do, and another number of shards asked for."""

    async def before(sessions: Sessions, story: FlowStory) -> None:
        flow = story.flow()
        await settle(sessions, flow)
        async with sessions.begin() as session:
            session.add_all(payments(4))
            await flow.flow.reshard(session, wanted)

    return before


async def finish(sessions: Sessions, story: FlowStory) -> None:
    await settle(sessions, story.flow())


async def finish_in_turn(sessions: Sessions, story: FlowStory) -> None:
    """Be another replica, of one flow behind the other."""
    flow = story.flow()
    for each in flow.streams.flows.values():
        await run_until_settled(sessions, flow.streams.pipelines(each))
