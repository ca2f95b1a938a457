"""One step of a pipeline at a time: fetch, work, beat, sweep. No loop runs and no time passes
unless the test says so.

The one idea: a test of a pipeline is about one row's day, so it takes that day step by step, with
the real actors on a real database, and looks at the row in between.

    async with stepping(session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        await steps.work_once()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Pipeline, PipelineHinter, PipelineItem
from rowlock.errors import ConfigurationError, PipelineError, describe
from rowlock.execution import execute
from rowlock.logs import tell_counts
from rowlock.spi import LockGraph, ModelT, PipelineRun, is_of_the_schema, is_transient

ROUNDS_MAX = 1000  # most rounds of `run_until_settled`: rows that are always due never settle
FAILED_CLAIMS_MAX = 3  # so many claims in a row are made again after an error that passes
LOOK_AGAIN_S = 0.01  # rest between two looks at work without an end, in seconds
LOOKS_MAX = 100_000
QUIET_PASSES = 2  # looks in a row at which such work has nothing left
STOP_S_MAX = 30.0  # seconds for such work to stop, before it is cancelled


def check_pipelines(*pipelines: object) -> None:
    """Refuse what is no pipeline, such as the class of one."""
    for one in pipelines:
        if not isinstance(one, Pipeline):
            raise ConfigurationError(
                f"a pipeline is an instance of a Pipeline subclass, such as VolumePipeline(), not"
                f" {one!r:.100}"
            )


@contextmanager
def tables_wanted() -> Iterator[None]:
    """Raise ConfigurationError with advice where the database of a test lacks a table or column."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_the_schema(error):
            raise
        raise ConfigurationError(
            f"the database of the test lacks what the model has ({describe(error.orig or error)});"
            " return Base.metadata from an own fixture rowlock_metadata, or await"
            " database.create_tables(Base.metadata)"
        ) from error


class Steps(Generic[ModelT]):
    """Takes one step of a pipeline at a time.

    Attributes:
        run: the actors, none of whose loops runs.
    """

    def __init__(self, run: PipelineRun[ModelT]) -> None:
        self.run = run

    @property
    def queued(self) -> tuple[PipelineItem[ModelT], ...]:
        """The items that wait for a worker, next one first."""
        return tuple(self.run.context.queue.waiting())

    async def fetch_once(self, limit: int | None = None) -> list[PipelineItem[ModelT]]:
        """Claim up to `limit` rows (default: as many as the queue has room for), queue them and
        return their items.
        """
        places = self.run.context.queue.places
        before = {item.lock_token for item in self.queued}
        with tables_wanted():
            await self.run.fetcher.fetch_once(places if limit is None else min(limit, places))
        return [item for item in self.queued if item.lock_token not in before]

    async def work_once(self) -> PipelineItem[ModelT]:
        """Work on the next queued item until its outcome is settled, and return it.

        Raises:
            PipelineError: nothing is queued.
        """
        if not self.queued:
            raise PipelineError("nothing is queued; fetch_once() found no eligible row")
        item = self.run.context.queue.get()
        assert item is not None
        await self.run.workers[0].work(item)
        await self.run.settler.wait_until_idle()
        return item

    async def work_all(self) -> int:
        """Work on everything that is queued, and return how many items there were."""
        worked = 0
        while self.queued:
            await self.work_once()
            worked += 1
        return worked

    async def beat_once(self) -> int:
        """Renew the leases that are near their end, and return how many were renewed."""
        return await self.run.heartbeater.beat_once()

    async def sweep_once(self) -> int:
        """Clear the lock columns that were left behind long ago, and return of how many rows."""
        return await self.run.fetcher.sweep_once()


@asynccontextmanager
async def stepping(
    session_factory: async_sessionmaker[AsyncSession],
    pipeline: Pipeline[ModelT],
    *,
    beside: Sequence[Pipeline[Any]] = (),
) -> AsyncIterator[Steps[ModelT]]:
    """Give the steps of `pipeline`; at the end, what is still queued is released.

    Args:
        session_factory: the host's.
        pipeline: the one to step.
        beside: pipelines that would run in the same manager: rows that one of them waits for are
            left alone (`Pipeline.locks`).

    Raises:
        ConfigurationError: the session factory cannot serve the pipeline, one of them is none, or
            the pipelines lock each other's rows in a circle.
    """
    check_pipelines(pipeline, *beside)
    lock_graph = LockGraph([pipeline, *beside])
    lock_graph.check()
    pipeline.check_can_run(session_factory)
    steps = Steps(pipeline.build_run(session_factory, PipelineHinter(), lock_graph))
    # Between two steps a test may change a row, however little time passes.
    steps.run.context.claims_rows = False
    try:
        yield steps
    finally:
        await steps.run.drain(0)
        tell_counts()


async def run_until_settled(
    session_factory: async_sessionmaker[AsyncSession], pipelines: Sequence[Pipeline[Any]]
) -> int:
    """Fetch and work, pipeline by pipeline, until a whole round finds no eligible row; return how
    many items were worked on.

    Rows that are due later stay as they are. Work without a limit (`process_timeout` is None) goes
    on beside all other, its leases being renewed. It is asked to stop once a round has found
    nothing and no row is left for which a method `unsettled` of such a pipeline, if there is one,
    holds.

    Raises:
        ConfigurationError: as `stepping`.
        PipelineError: after `ROUNDS_MAX` rounds in which there was work, or `LOOKS_MAX` looks at
            work without a limit, there was still work.
    """
    if not isinstance(pipelines, Sequence):
        raise ConfigurationError(
            "run_until_settled takes a session factory and a list of pipelines, such as"
            f" [VolumePipeline()], not {pipelines!r:.100}"
        )
    check_pipelines(*pipelines)
    worked = rounds = looks = quiet = 0
    lasting = [one for one in pipelines if one.settings.process_timeout is None]
    brief = [one for one in pipelines if one not in lasting]

    def stepped(one: Pipeline[Any]) -> AbstractAsyncContextManager[Steps[Any]]:
        beside = [other for other in pipelines if other is not one]
        return stepping(session_factory, one, beside=beside)

    async with AsyncExitStack() as stack:
        works = [(await stack.enter_async_context(stepped(one))).run for one in lasting]
        for run in works:
            # Its workers take what is fetched; at the end, `stepping` interrupts them.
            run.pool.start()
        while (rounds := rounds + 1) <= ROUNDS_MAX:
            in_this_round = sum([await _begin(run) for run in works])
            for pipeline in brief:
                async with stepped(pipeline) as steps:
                    await _fetch(steps.run, steps.run.context.queue.places)
                    in_this_round += await steps.work_all()
            worked += in_this_round
            if in_this_round:
                continue
            if not works:
                return worked
            left = [await _is_left(session_factory, one) for one in lasting]
            quiet = 0 if any(left) else quiet + 1
            # One that was asked before another may have got something of it behind that.
            if quiet < QUIET_PASSES:
                await asyncio.sleep(LOOK_AGAIN_S)
                # It takes as long as it takes, which is no round.
                looks, rounds = looks + 1, rounds - (looks < LOOKS_MAX)
                continue
            for run in works:
                await run.drain(STOP_S_MAX)
            # What it did at its end may be work for others.
            works = []
    raise PipelineError(
        f"the rows have not settled after {ROUNDS_MAX} rounds and {looks} looks at work without a"
        " limit; is there one that is always due?"
    )


async def _begin(run: PipelineRun[Any]) -> int:
    """Renew leases, begin work on what can be claimed now, and return how many items it is."""
    await run.heartbeater.beat_once()
    free = run.context.queue.idle()
    return await _fetch(run, free) if free else 0


async def _fetch(run: PipelineRun[Any], limit: int) -> int:
    with tables_wanted():
        # On a starved machine a claim comes too late, or the file of SQLite is locked for too long:
        # a manager looks again, too.
        for _ in range(FAILED_CLAIMS_MAX):
            try:
                return await run.fetcher.fetch_once(limit)
            except Exception as error:
                if not is_transient(error):
                    raise
        return await run.fetcher.fetch_once(limit)


async def _is_left(
    session_factory: async_sessionmaker[AsyncSession], pipeline: Pipeline[Any]
) -> bool:
    # `ready()` of work without an end is always true.
    unsettled = getattr(pipeline, "unsettled", None)
    if unsettled is None:
        return False
    async with session_factory() as session:
        found = select(pipeline.leased.key).where(unsettled()).limit(1)
        return (await execute(session, found)).first() is not None


class StepKind(StrEnum):
    """What a step does."""

    FETCH = "fetch"
    """The replica claims rows: as many as `number`, at least one."""
    WORK = "work"
    """The replica works on the next item of its queue, if there is one."""
    BEAT = "beat"
    """The replica renews the leases that are near their end."""
    SWEEP = "sweep"
    """The replica clears lock columns that were left behind."""
    PASS = "pass"
    """So many `seconds` pass for everybody."""
    SERVICE = "service"
    """A service writes; which row, and what, is up to the test: `number` tells it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens.

    Attributes:
        kind: what it is.
        replica: which replica does it.
        seconds: how long it lasts, if time passes. **Unit** seconds.
        number: how many rows are fetched, or what a service is to do.
    """

    kind: StepKind
    replica: int = 0
    seconds: float = 0.0
    number: int = 1


async def take_step(
    step: Step,
    replicas: Sequence[Steps[Any]],
    *,
    service: Callable[[int], Awaitable[None]] | None = None,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Let one step happen.

    Args:
        step: what happens.
        replicas: each the `stepping` of a pipeline of its own.
        service: writes what the number of the step stands for; without it services write nothing.
        wait: lets time pass; on a virtual loop, with a database that follows it, the default does.
    """
    replica = replicas[step.replica % len(replicas)]
    match step.kind:
        case StepKind.FETCH:
            await replica.fetch_once(max(1, step.number))
        case StepKind.WORK:
            if replica.queued:
                await replica.work_once()
        case StepKind.BEAT:
            await replica.beat_once()
        case StepKind.SWEEP:
            await replica.sweep_once()
        case StepKind.PASS:
            await wait(step.seconds)
        case StepKind.SERVICE:
            if service is not None:
                await service(step.number)
