"""Processes that are not: several replicas in one event loop, each of which can be killed, frozen
and thawed.

The one idea: a context variable names the process. It is set when a process starts and inherited by
every task, callback and timer that comes of it, so the loop (``loop.py``) knows of each callback
whose it is. A dead process is one whose callbacks never run again: no ``finally``, no release, as
after ``kill -9``. A frozen one runs none either, and then all of them at once.

Not here: its way to the database (``faulty_connection.py``), and when any of this happens
(``faults.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .faulty_connection import FaultyConnection

T = TypeVar("T")


class State(Enum):
    """What becomes of a process's callbacks: they run, wait, or never run again."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Process:
    """One simulated process: a replica, or a service of the host.

    Attributes:
        name: for the history.
        faulty_connection: its way to the database.
        state: what becomes of its callbacks.
        held: callbacks that came due while it did not run; read by the loop.
        skew: by how much its wall clock is wrong.
        thawed_at_s: when it went on last, by the loop's time.
        hints_lost: the share of hints that do not reach it.
    """

    def __init__(self, name: str, faulty_connection: FaultyConnection) -> None:
        self.name = name
        self.faulty_connection = faulty_connection
        self.state = State.RUNNING
        self.held: list[asyncio.Handle] = []
        self.skew = timedelta(0)
        self.thawed_at_s = 0.0
        self.hints_lost = 0.0
        self._context = copy_context()
        self._context.run(current_process.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name}, {self.state.value}>"

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD

    def call(self, function: Callable[[], T]) -> T:
        return self._context.copy().run(function)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context())

    def context(self) -> Context:
        return self._context.copy()

    def kill(self) -> None:
        """Be gone in the middle of whatever it does; the database rolls back what it had open."""
        self.state = State.DEAD
        self.faulty_connection.drop_all()

    def freeze(self) -> None:
        """Stop in the middle of whatever it does, and notice nothing of it."""
        if self.is_running:
            self.state = State.FROZEN

    def thaw(self) -> None:
        """Go on; whatever came due meanwhile runs at once, in the order in which it came due."""
        if self.state is State.FROZEN:
            self.thawed_at_s = asyncio.get_running_loop().time()
            self._release()

    def rise(self) -> None:
        """Let a dead one go on as a ghost that reaches nothing any more, so that its tasks can
        be ended.
        """
        self.faulty_connection.is_gone = True
        self._release()

    def _release(self) -> None:
        self.state = State.RUNNING
        held, self.held = self.held, []
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        ready.extend(handle for handle in held if not handle.cancelled())


current_process: ContextVar[Process | None] = ContextVar("rowlock_simulated_process", default=None)
"""Whose code runs; None for the simulation itself."""
