"""Where accepted attempts run: the protocol of two methods that every engine keeps.

The one idea: an engine knows workers and nothing of rows. To offer is to ask: it returns when a
worker has accepted, before any slow work, or says why not. What happens then comes as events;
closing their iterator cancels the attempt.

Not here: which worker is asked first (``balancers.py``), and what becomes of the events
(``delivery.py``).

Source: the worker protocol of wool, whose dispatch streams and whose backpressure refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from rowlock.dispatch.task import AttemptEvent, Task


class Events(Protocol):
    """The events of one attempt: an async iterator that can be closed, also before it was asked
    for anything.
    """

    def __aiter__(self) -> Self:
        """Return itself."""
        ...

    async def __anext__(self) -> AttemptEvent:
        """Return the next event, as soon as there is one."""
        ...

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
