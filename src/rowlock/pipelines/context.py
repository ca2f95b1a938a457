"""What the actors of one pipeline share: its table, settings, hooks, queue, counters and way to the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Column, ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.containment import begin_task
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import RelatedLocker
from rowlock.leases.transaction import in_transaction
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Attempt, host_call
from rowlock.pipelines.deadlines import Deadlines
from rowlock.pipelines.hinter import PipelineHinter
from rowlock.pipelines.item_queue import ItemQueue
from rowlock.pipelines.lifeline import Lifeline
from rowlock.pipelines.poll_groups import PollGroups
from rowlock.pipelines.settings import PipelineSettings
from rowlock.pipelines.statistics import Counters
from rowlock.rows.eligibility import Taker
from rowlock.rows.leased_table import LeasedTable, ModelT

logger = get_logger(__name__)

T = TypeVar("T")


class Hooks(Protocol[ModelT]):
    """What the host writes: `Pipeline` itself, seen from its actors."""

    def ready(self) -> ColumnElement[bool]:
        """Which rows want work."""
        ...

    def process(self, item: PipelineItem[ModelT]) -> Any:  # noqa: ANN401 - an outcome, or an awaitable of one
        """Work on one row."""
        ...

    def options(self) -> Sequence[LoaderOption]:
        """Loader options for the row."""
        ...

    def on_stale(self, item: PipelineItem[ModelT], outcome: Any) -> Awaitable[None] | None:  # noqa: ANN401
        """Clean up after a result that was not applied."""
        ...

    def on_refused(self, item: PipelineItem[ModelT], error: Exception) -> Any:  # noqa: ANN401
        """Say what comes of a row whose result the database refused: an outcome."""
        ...


@dataclass(eq=False)
class PipelineContext(Generic[ModelT]):
    """Built when a pipeline starts, dropped when it has stopped.

    Attributes:
        name: the pipeline's class name, which is also the owner in its leases.
        hinter: wakes pipelines of this process, for ``Apply(hint=...)``.
        locker: locks related rows.
        takers: asks who locks rows of this model as related rows.
        intent: columns that services own.
        lifeline: where leases are renewed; None is here, on the host's loop and over its connections.
        poll_groups: polls for this pipeline together with others while all are idle; None is by itself.
        claims_rows: whether a claim can give whole rows: the host wants no options, and the model is plain.
        starts_soon: whether the last item was begun so soon after its claim that the row which that gave was still fresh.
        is_ending: whether the event loop ends everything; set by the run.
        look_again_in: has the fetcher look after a delay; set by the run.
        errors: the last failure of each loop, by the loop's name; an entry goes when the loop succeeds again.
        failures: how often each loop failed in a row.
        in_hand: items that workers have in hand.
        running: attempts by lock token.
        cleaning: calls of `on_stale`.
        hurried: the grace of a shutdown is over; nothing is waited out any more.
        abandoned: attempts that ignored their cancellation and still run; bounded by what the host lets hang.
        background: short tasks that must end before the pipeline has stopped.
        threads: run plain `process` and `on_stale` functions.
        deadlines: ends attempts after `process_timeout`.
    """

    name: str
    leased: LeasedTable[ModelT]
    settings: PipelineSettings
    hooks: Hooks[ModelT]
    session_factory: async_sessionmaker[AsyncSession]
    hinter: PipelineHinter
    queue: ItemQueue[ModelT]
    locker: RelatedLocker
    takers: Callable[[], Sequence[Taker]] = tuple
    intent: Sequence[Column[Any]] = ()
    lifeline: Lifeline | None = None
    poll_groups: PollGroups | None = None
    claims_rows: bool = False
    starts_soon: bool = True
    is_ending: Callable[[], bool] = field(default=lambda: False)
    look_again_in: Callable[[timedelta], None] = field(default=lambda _delay: None)
    counters: Counters = field(default_factory=Counters)
    errors: dict[str, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    in_hand: set[PipelineItem[ModelT]] = field(default_factory=set)
    running: dict[Any, Attempt] = field(default_factory=dict)
    cleaning: set[Attempt] = field(default_factory=set)
    hurried: bool = False
    abandoned: list[Attempt] = field(default_factory=list)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    threads: Executor = field(init=False)
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.settings.process_timeout.total_seconds())
        # Twice as many as workers: those that were left behind must not keep all others waiting.
        self.threads = ThreadPoolExecutor(2 * self.settings.workers_num, thread_name_prefix=f"rowlock {self.name}")

    async def transact(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        writes: bool = True,
        alone: bool = False,
        timeout: timedelta | None = None,
    ) -> T:
        """Run `work` in one transaction of its own, bounded by `timeout` (`database_timeout`) and shielded from cancellation."""
        return await in_transaction(
            self.session_factory,
            self.leased,
            work,
            purpose=purpose,
            timeout=timeout or self.settings.database_timeout,
            writes=writes,
            alone=alone,
        )

    def failed(self, loop: str, error: str) -> None:
        """Note that a round of `loop` failed."""
        self.errors[loop] = error
        self.failures[loop] = self.failures.get(loop, 0) + 1

    def succeeded(self, loop: str) -> None:
        """Note that a round of `loop` went well."""
        if self.errors:
            self.errors.pop(loop, None)
            self.failures.pop(loop, None)

    def in_background(self, work: Coroutine[Any, Any, None], *, purpose: str) -> asyncio.Task[None]:
        """Run `work` without waiting for it; `drain` does. Whatever it raises is logged."""
        try:
            task = begin_task(self._contained(work, purpose), name=f"rowlock: {purpose}")
        except BaseException:
            work.close()
            raise
        self.background.add(task)
        task.add_done_callback(partial(self._ended, purpose))
        # One that was cancelled before its first step has not begun `work`, which Python would warn of.
        task.add_done_callback(lambda _task: work.close())
        return task

    async def _contained(self, work: Coroutine[Any, Any, None], purpose: str) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A SystemExit that left this task would end the whole event loop.
            logger.error(
                "%s: a background task failed: %s",
                self.name,
                purpose,
                extra={"pipeline": self.name, "purpose": purpose},
                exc_info=error,
            )

    def _ended(self, purpose: str, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        if not task.cancelled() or self.is_ending():
            return
        text, extra = (
            "%s: a background task was cancelled from outside: %s",
            {"pipeline": self.name, "purpose": purpose},
        )
        logger.error(text, self.name, purpose, extra=extra)

    def tell_settled(self, item: PipelineItem[ModelT]) -> None:
        """Begin what waited until the outcome of `item` was settled."""
        act, item.when_settled = item.when_settled, None
        if act is not None:
            self.in_background(act(), purpose="see to what waited for an outcome")

    def new_attempt(self, function: Callable[..., Any], *args: object) -> Attempt:
        """Return an attempt at a call of the host's code, not begun."""
        return Attempt(
            host_call(function, *args, threads=self.threads),
            deadlines=self.deadlines,
            grace_s=self.settings.cancel_grace.total_seconds(),
        )

    def abandon(self, attempt: Attempt) -> None:
        """Remember an attempt that would not end, and forget those that have ended meanwhile."""
        self.abandoned[:] = [*self.still_abandoned(), attempt]

    def still_abandoned(self) -> list[Attempt]:
        """Return the abandoned attempts that still run."""
        return [attempt for attempt in self.abandoned if attempt.is_running]
