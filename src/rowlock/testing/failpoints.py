"""Failpoints at every boundary of a statement: something goes wrong right before, or right after,
the k-th one.

The one idea: nothing in the library knows of it. SQLAlchemy tells an engine's statements by its
events, and its dialect is asked for every COMMIT and ROLLBACK, so both sides of each can be
counted; a sweep over all k leaves no moment untried.

    with Failpoints(engine, at=k, act=lose_connection) as points:
        await the_step_under_test()
    if points.reached is None: ...                         # it has fewer boundaries: the sweep is
    over

Acts: `lose_connection` raises what an outage does; after a COMMIT that is the lost answer to it.
An act may be any function of the host's tests, such as one that kills a process of its own.

Not here: who starts such processes and goes on afterwards; `crash_everywhere`, which kills within a
process.

Source: FreeBSD's ``fail(9)``; the statement boundary as the unit comes from SQLite's own crash
tests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

BOUNDARIES_MAX: Final = 100_000
"""How many boundaries one `Failpoints` counts. A step with more never ends."""

BEFORE: Final = "before"
AFTER: Final = "after"
STATEMENT_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Boundary:
    """One side of a statement, ``before`` or ``after``.

    The statement is SQL, or ``BEGIN``, ``COMMIT``, ``ROLLBACK``. There is nothing after a
    ``BEGIN``: drivers send it with the first statement.
    """

    number: int
    side: str
    statement: str

    @property
    def is_lost_answer(self) -> bool:
        """Whether the database has committed, and the answer has not arrived."""
        return (self.side, self.statement) == (AFTER, "COMMIT")

    @property
    def place(self) -> str:
        return f"{self.side} {' '.join(self.statement.split())[:STATEMENT_SHOWN_MAX]}"

    def __str__(self) -> str:
        return f"boundary {self.number}, {self.place}"


Act: TypeAlias = Callable[[Boundary], None]


def lose_connection(boundary: Boundary) -> None:
    """Raise what reaches a caller whose connection was cut."""
    raise ConnectionResetError(f"the connection was cut: {boundary}")


_ARMED_HERE: ContextVar[frozenset[int]] = ContextVar("armed here", default=frozenset())
"""The failpoints that count boundaries of this task, by their `id`."""


@dataclass(eq=False)
class Failpoints:
    """Counts the boundaries of an engine, and acts at one of them.

    Attributes:
        engine: whose statements; also those of its ``execution_options()`` and of other threads.
        at: at which boundary, from 0; never if None.
        act: what is done there, once.
        distinct: whether only those count at which the world has changed: both sides of a COMMIT,
            and the side before everything else. To be dead after one statement is to be dead before
            the next.
        armed: whether all boundaries count; set it to False for the parts of a story that are not
            under test (`armed_here`).
        note: is told of every boundary that counts.
        reached: the boundary at which that was, or None.
        passed: all boundaries that counted so far, in order.
    """

    engine: AsyncEngine
    at: int | None = None
    act: Act = lose_connection
    distinct: bool = False
    armed: bool = True
    note: Act | None = None
    reached: Boundary | None = None
    passed: list[Boundary] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __enter__(self) -> Failpoints:
        """Count from now on."""
        for name, side in (("before_cursor_execute", BEFORE), ("after_cursor_execute", AFTER)):
            self._listen(name, lambda *args, side=side: self.boundary(side, args[2]))
        self._listen("begin", lambda *_: self.boundary(BEFORE, "BEGIN"))
        for name in ("commit", "rollback"):
            self._wrap(name)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the engine as it was."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def armed_here(self) -> Iterator[None]:
        """Count what this task does inside of the block, and tasks that it begins there: not the
        statements of others at the same time.
        """
        token = _ARMED_HERE.set(_ARMED_HERE.get() | {id(self)})
        try:
            yield
        finally:
            _ARMED_HERE.reset(token)

    def boundary(self, side: str, statement: str) -> None:
        """Count one boundary, and act if it is the one."""
        with self._lock:
            if not (self.armed or id(self) in _ARMED_HERE.get()):
                return
            if self.distinct and side == AFTER and statement != "COMMIT":
                return
            if len(self.passed) >= BOUNDARIES_MAX:
                raise OverflowError(f"{BOUNDARIES_MAX} boundaries and no end; {statement}")
            here = Boundary(len(self.passed), side, statement)
            self.passed.append(here)
            if here.number == self.at:
                self.reached = here
        if self.note is not None:
            self.note(here)
        if self.reached is here:
            self.act(here)

    def _listen(self, name: str, listener: Callable[..., None]) -> None:
        engine = self.engine.sync_engine
        event.listen(engine, name, listener)
        self._undo.append(lambda: event.remove(engine, name, listener))

    def _wrap(self, name: str) -> None:
        # The events come before the driver is asked, and there is none for its answer. The dialect
        # is this engine's alone.
        dialect: Any = self.engine.sync_engine.dialect
        method, attribute, statement = getattr(dialect, f"do_{name}"), f"do_{name}", name.upper()
        outer = vars(dialect).get(attribute)

        def with_both_sides(connection: object) -> None:
            self.boundary(BEFORE, statement)
            method(connection)
            self.boundary(AFTER, statement)

        def undo() -> None:
            if outer is None:
                delattr(dialect, attribute)
            else:
                setattr(dialect, attribute, outer)

        setattr(dialect, attribute, with_both_sides)
        self._undo.append(undo)


class CommittedWrites:
    """Finds the boundaries behind the COMMIT of a transaction that has written."""

    def __init__(self, writes: Callable[[str], bool]) -> None:
        self._writes = writes
        self._writing: set[object] = set()

    def __call__(self, boundary: Boundary) -> bool:
        """Whether the answer to such a COMMIT comes next; must see every boundary."""
        task = asyncio.current_task()
        if boundary.statement in ("COMMIT", "ROLLBACK"):
            is_one = boundary.is_lost_answer and task in self._writing
            if boundary.side == AFTER:
                self._writing.discard(task)
            return is_one
        if self._writes(boundary.statement):
            self._writing.add(task)
        return False
