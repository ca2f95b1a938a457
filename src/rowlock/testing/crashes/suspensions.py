"""Sees every suspension of a coroutine and of all tasks that come of it, and may keep them from
going on.

The one idea: a task factory hands out tasks whose coroutines are driven through an observer, step
by step. A task that was started inside of `observed` is seen, however deep; others are not touched.
So a test can say "cancel it at the n-th suspension", or "from here on it is dead", for every n.

Not here: what to do at a suspension (``crash_everywhere``, and the tests of cancellation).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

__all__ = ["SuspensionObserver", "Watched", "frames_of", "observed", "seen_by"]


class SuspensionObserver(Protocol):
    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None: ...

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        """Return what a coroutine must wait for before it is cancelled; None: it goes on."""
        ...


_observer: ContextVar[SuspensionObserver | None] = ContextVar("rowlock_observer", default=None)


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose suspensions an observer sees."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], observer: SuspensionObserver) -> None:
        self._coroutine = coroutine
        self._observer = observer
        self._held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self.send(value) if error is None else self.throw(error)
            except StopIteration as end:
                return cast("Any", end.value)
            value, error = None, None
            try:
                value = yield waits_for
            except GeneratorExit:
                self.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's to handle
                error = thrown

    def send(self, value: Any) -> Any:
        """Go on, or stay where it is."""
        if (barrier := self._barrier()) is not None:
            return barrier
        if self._held:
            self._held = False
            return self.throw(asyncio.CancelledError())
        waits_for = self._coroutine.send(value)
        self._observer.suspended(self._coroutine)
        return waits_for

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """Go on with an error, or stay where it is."""
        if (barrier := self._barrier()) is not None:
            return barrier
        error = (
            typ
            if isinstance(typ, BaseException)
            else val
            if isinstance(val, BaseException)
            else typ()
        )
        waits_for = self._coroutine.throw(error.with_traceback(tb) if tb is not None else error)
        self._observer.suspended(self._coroutine)
        return waits_for

    def close(self) -> None:
        self._coroutine.close()

    def _barrier(self) -> Any:
        holds_until = self._observer.holds(self._coroutine)
        if holds_until is None or holds_until.done():
            return None
        self._held = True
        # One for each: to cancel a task is to cancel the future that it waits for.
        own: asyncio.Future[None] = holds_until.get_loop().create_future()
        holds_until.add_done_callback(lambda _: None if own.done() else own.set_result(None))
        return next(iter(own.__await__()))


@contextmanager
def observed(observer: SuspensionObserver) -> Iterator[None]:
    """Have `observer` see every task that is started in the block, or by such a task later on."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make_task(
        loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Future[Any]:
        context = options.get("context")
        seer = _observer.get() if context is None else context.get(_observer)
        if seer is not None and inspect.iscoroutine(coroutine):
            coroutine = Watched(coroutine, seer)
        return (
            asyncio.Task(coroutine, loop=loop, **options)
            if before is None
            else before(loop, coroutine, **options)
        )

    loop.set_task_factory(make_task)
    try:
        with seen_by(observer):
            yield
    finally:
        loop.set_task_factory(before)


@contextmanager
def seen_by(observer: SuspensionObserver) -> Iterator[None]:
    """Have tasks that are started in the block, itself in `observed`, seen by another observer."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def frames_of(
    coroutine: Any,
) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and name of each frame that waits, the coroutine's own first."""
    while coroutine is not None:
        frame = next(
            (f for a in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, a, None))),
            None,
        )
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        coroutine = next(
            (
                c
                for a in ("cr_await", "gi_yieldfrom", "ag_await")
                if (c := getattr(coroutine, a, None))
            ),
            None,
        )
