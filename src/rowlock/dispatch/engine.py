"""Where accepted attempts run: the task that an engine is given, the events that it returns, and
the protocol of two methods that every engine keeps.

The one idea: an engine knows workers and nothing of rows. To offer is to ask: it returns when a
worker has accepted, before any slow work, or says why not. What happens then comes as events;
closing their iterator cancels the attempt.

Tasks, events and hooks of backpressure are data that can be pickled, since a worker may be another
process or another machine. Hooks and balancers are plain and synchronous: one that waits would let
two offers pass at once.

Not here: what becomes of the events (``delivery.py``).

Source: the worker protocol of wool, whose dispatch streams and whose backpressure refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from rowlock.dispatch.columns import detail_of
from rowlock.errors import SettingsError, describe
from rowlock.pipelines.outcomes import leaves_of

RowT = TypeVar("RowT")


def class_name(cls: type) -> str:
    """The name by which a class is known in each process."""
    # The main module has another name in a process that was started for a handler.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The attempt lives. The first event of every attempt: a worker has accepted it, and nothing
    slow was begun.
    """


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, in words or as a number; the last one is shown in the row."""

    text: str


@dataclass(frozen=True, slots=True)
class StageDone:
    """A part of the work is done and need not be done again; recorded at once.

    Attributes:
        name: of the stage.
        key: what a later attempt needs to go on from there, such as where a file was stored.
    """

    name: str
    key: Any = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The work is done: `values` are written to the row."""

    values: Mapping[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The work cannot be done. It is not tried again, unless the handler raised an error of
    `retry_on`.

    Attributes:
        kind: prefix of the error: ``internal``, or a word of the host's own, such as ``input``: at
            most 32 lower-case letters, digits, blanks and dashes, and none of those that the
            pipeline gives.
        text: what went wrong.
        detail: what the log is to say of it beyond that, such as a traceback; clients do not see
            it.
        raised: of each error that the handler raised, the names of its classes, the nearest first:
            the error itself may not survive the way from another process.
    """

    kind: str
    text: str
    detail: str = field(default="", compare=False)
    raised: tuple[tuple[str, ...], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Return what an engine tells of an error that a handler raised."""
        raised = tuple(tuple(map(class_name, type(one).__mro__)) for one in leaves_of(error))
        return cls("internal", describe(error), detail=detail_of(error), raised=raised)


AttemptEvent: TypeAlias = Heartbeat | Progress | StageDone | Completed | Failed


@dataclass(frozen=True, slots=True)
class Task(Generic[RowT]):
    """One attempt at one row, as the handler sees it.

    Attributes:
        id: the row's key.
        attempt: which attempt this is, 1-based; those that found no worker count, too.
        nonce: tells this attempt from every other one; the lock token.
        row: the row as it was read when the attempt began: detached, changing it writes nothing.
        workdir: a new, empty folder of this attempt alone, removed when it ends. On the machine of
            the dispatcher: an engine of other machines replaces it.
        stages: what earlier attempts recorded with `StageDone`, by name.
        handler: does the work.
        heartbeat_s: how often the engine must let hear that the attempt lives, in seconds.
    """

    id: Any
    attempt: int
    nonce: str
    row: RowT
    workdir: Path
    stages: Mapping[str, Any]
    handler: Handler[RowT]
    heartbeat_s: float

    def is_done(self, stage: str) -> bool:
        """Whether an earlier attempt has done `stage`."""
        return stage in self.stages


Handler: TypeAlias = Callable[[Task[RowT]], AsyncIterator[AttemptEvent] | Iterator[AttemptEvent]]
"""The host's work: an ``async def`` or ``def`` with ``yield``, whose last event is `Completed`
or `Failed`.
"""


class Events(Protocol):
    """The events of one attempt: an async iterator that can be closed, also before it was asked
    for anything.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> AttemptEvent: ...

    async def aclose(self) -> None:
        """Cancel the attempt if it still runs, and return when it has ended. May be called
        twice.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What is known of a worker without asking it.

    Attributes:
        active: attempts that run there, as far as this process knows.
        tags: labels for balancers of the host's own.
    """

    active: int = 0
    tags: frozenset[str] = frozenset()


@runtime_checkable
class Engine(Protocol):
    """Runs attempts."""

    def workers(self) -> Mapping[str, WorkerView]:
        """Return who may be offered an attempt now, by id; asked often, so it answers from
        memory.
        """
        ...

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        """Offer `task` to `worker`, and return its events once it has accepted.

        The first event, a `Heartbeat`, comes at once; then at least one every ``task.heartbeat_s``;
        the last one is `Completed` or `Failed`. A handler goes on from a `StageDone` when the next
        event is asked for: until then the stage is not recorded. An attempt whose worker dies
        raises `WorkerGone` out of the iterator. To close the iterator cancels the attempt, and
        returns when it has ended or can do no more.

        Raises:
            WorkerBusy: it refused for now.
            WorkerGone: it cannot be reached, or is broken.
        """
        ...


TASKS_MAX = 10_000
"""Most tasks that one worker may be allowed at once."""


@dataclass(frozen=True, slots=True)
class BackpressureContext:
    """What a worker knows when it is offered an attempt.

    Attributes:
        active_task_count: attempts that run there.
        task: the one that is offered.
    """

    active_task_count: int
    task: Any = None


Backpressure: TypeAlias = Callable[[BackpressureContext], bool]
"""Returns whether to refuse."""


@dataclass(frozen=True, slots=True)
class TaskCountBackpressure:
    """Refuse what goes beyond `threshold` attempts at once; 0 refuses nothing.

    Raises:
        SettingsError: the threshold is negative, no whole number, or above `TASKS_MAX`.
    """

    threshold: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int) or not 0 <= self.threshold <= TASKS_MAX:
            raise SettingsError(
                "TaskCountBackpressure takes a whole number from 0 (refuse nothing) to"
                f" {TASKS_MAX}, not {self.threshold!r}",
                pipeline="dispatch",
                settings=("threshold",),
            )

    def __call__(self, context: BackpressureContext) -> bool:
        """Return whether to refuse."""
        return self.threshold > 0 and context.active_task_count >= self.threshold


class Balancer(Protocol):
    """Says in which order workers are asked."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return ids of workers, the first to be asked first; those left out are not asked."""
        ...


class PriorityLoadBalancer:
    """By id, always: the first fill up first."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids in their order."""
        return sorted(workers)


class RoundRobin:
    """Each time another one first."""

    def __init__(self) -> None:
        self._offers = count()

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids in their order, begun one further each time."""
        ids = sorted(workers)
        first = next(self._offers) % len(ids) if ids else 0
        return ids[first:] + ids[:first]


class LeastBusy:
    """Who has the least in hand first, by id among equals."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids by what is known to run there."""
        return sorted(workers, key=lambda worker: (workers[worker].active, worker))
