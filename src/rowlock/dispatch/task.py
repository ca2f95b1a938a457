"""What an engine is given and what it tells: the task, and the events of an attempt.

Pure data that travels: every part can be pickled, since a worker may be another process or another
machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from rowlock.dispatch.client_text import detail_of
from rowlock.errors import describe
from rowlock.pipelines.outcomes import leaves_of

RowT = TypeVar("RowT")


def class_name(cls: type) -> str:
    """Return the name by which a class is known in each process."""
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
