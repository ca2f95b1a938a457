"""One attempt on this machine: its folder, and its events.

Two attempts at one row never write into each other's files: each has a folder, which is gone when
the attempt is. Its events are a beat while nothing comes, and an end that comes once.

Two traps. A text, a mapping or a kind that a handler yields may be of any class, and raise anything
when it is looked at: it is copied once and contained, before anything else. And silence counts only
while the loop can listen: an event loop that the host has blocked finds that the time is over in
the very moment in which it could listen again, so it is given a moment to do so.

The one idea: a handler runs in one task from its first step to its last, as it would anywhere else.
So a timeout or a task group that it opened goes on across a ``yield``, and so do its context
variables. `Stream` is no generator: one that was never begun is closed without a word, and its
worker would stay counted as busy.

Worker processes import this module: it knows nothing of rows.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from rowlock.clock import monotonic
from rowlock.dispatch.columns import DETAIL_CHARS_MAX, is_storable, progress_of
from rowlock.dispatch.engine import (
    AttemptEvent,
    Completed,
    Events,
    Failed,
    Heartbeat,
    Progress,
    StageDone,
)
from rowlock.errors import OutcomeError, WorkerGone, describe, shorten
from rowlock.logs import get_logger
from rowlock.pipelines.outcomes import copied_value
from rowlock.tasks import ENDED, DaemonThreads, as_host_code, finish

T = TypeVar("T")

logger = get_logger(__name__)

PREFIX = "rowlock-"
THREADS_MAX = 4
"""Most threads of one pipeline that make and remove folders."""


class Scratch:
    """Makes folders below `root`; the system's place for temporary files if that is None."""

    # In threads of its own: those of the event loop may all be taken by handlers.

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._threads = DaemonThreads(THREADS_MAX, name="rowlock scratch")

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """A new, empty folder for the time of the block."""
        folder = await self._make()
        try:
            yield folder
        finally:
            await asyncio.shield(self._in_thread(partial(_remove, folder)))

    async def _make(self) -> Path:
        made: list[Path] = []

        async def make() -> None:
            made.append(
                Path(
                    await self._in_thread(partial(tempfile.mkdtemp, prefix=PREFIX, dir=self._root))
                )
            )

        try:
            # Whole: a thread cannot be cancelled, and its folder would stay.
            await finish(make(), purpose="make a scratch folder")
        except asyncio.CancelledError:
            for folder in made:
                _remove(folder)
            raise
        return made[0]

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError:
        logger.exception("A scratch folder was not removed", {"folder": folder.name})


_END: Final = object()


class Stream:
    """Events of `source`, `Heartbeat` first and in silence; what a handler raises is `Failed`."""

    def __init__(
        self,
        source: AsyncGenerator[AttemptEvent, None],
        *,
        beat_s: float | None,
        on_end: Callable[[], None],
    ) -> None:
        self._source = source
        self._beat_s = beat_s
        self._on_end = on_end
        self._is_new = True
        self._is_wanted = asyncio.Event()
        self._coming: asyncio.Future[Any] | None = None
        self._handler: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AttemptEvent:
        if self._closing is not None:
            raise StopAsyncIteration
        if self._is_new:
            self._is_new = False
            return Heartbeat()
        if self._coming is None:
            self._acknowledge()
        assert self._coming is not None
        await asyncio.wait({self._coming}, timeout=self._beat_s)
        if not self._coming.done():
            return Heartbeat()
        came, self._coming = self._coming, None
        event: Any = came.result()
        if event is _END:
            await self.aclose()
            raise StopAsyncIteration
        return event  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """Cancel the attempt, and wait for its end, however long that takes: until then no other
        attempt may have its row.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="rowlock: close an attempt")
            self._closing.add_done_callback(lambda _: self._on_end())
        await asyncio.wait({self._closing})

    async def _close(self) -> None:
        if self._handler is None:
            await self._close_source()
        else:
            self._handler.cancel(ENDED)
            await asyncio.wait({self._handler})
        if self._coming is not None and self._coming.done():
            self._coming.exception()  # asyncio would log that it was never retrieved

    def _acknowledge(self) -> None:
        self._coming = asyncio.get_running_loop().create_future()
        self._is_wanted.set()
        if self._handler is None:
            self._handler = asyncio.create_task(self._run(), name="rowlock: a handler")
        elif self._handler.done():
            self._coming.set_result(_END)

    # In the handler's task ------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._pass_on()
            await self._tell(_END)
        except WorkerGone as gone:
            await self._tell(gone)
        except asyncio.CancelledError:
            if self._closing is not None:
                raise
            await self._tell(Failed("internal", "the handler let a cancellation escape"))
        # The handler is host code and may raise anything.
        except BaseException as error:  # noqa: BLE001
            await self._tell(Failed.of(error))
        finally:
            await self._close_source()

    async def _pass_on(self) -> None:
        step = anext(self._source)
        while True:
            try:
                event = await step
            except StopAsyncIteration:
                return
            try:
                await self._tell(event)
                await self._is_wanted.wait()
            except asyncio.CancelledError as cancelled:
                if self._closing is not None:
                    raise
                # Of the handler's own, such as its timeout, which went off while its event was
                # being recorded.
                step = self._source.athrow(cancelled)
            else:
                step = anext(self._source)

    async def _tell(self, result: object) -> None:
        if self._closing is not None:
            raise asyncio.CancelledError
        await self._is_wanted.wait()
        self._is_wanted.clear()
        assert self._coming is not None
        if isinstance(result, WorkerGone):
            self._coming.set_exception(result)
        else:
            self._coming.set_result(result)

    async def _close_source(self) -> None:
        if not hasattr(self._source, "aclose"):
            return
        try:
            await self._source.aclose()
        except asyncio.CancelledError:
            raise
        except BaseException:  # of the handler; the attempt ends nevertheless
            logger.exception("An attempt failed while it was closed")


def is_last(event: AttemptEvent) -> bool:
    return isinstance(event, Completed | Failed)


def plain_event(event: object) -> AttemptEvent:
    """The event with parts of plain types, and the text of a `Progress` as it is stored."""
    try:
        match event:
            case Heartbeat():
                return Heartbeat()
            case Progress(text):
                return Progress(progress_of(text))
            case StageDone(name, key):
                return StageDone(_stage_name(name), copied_value(key))
            case Completed(values):
                return Completed(_values(values))
            case Failed(kind, text, detail):
                # A worker of an earlier version does not send it.
                raised = tuple(tuple(map(str, one)) for one in getattr(event, "raised", ()))
                shown = shorten(str(detail), chars_max=DETAIL_CHARS_MAX)
                return Failed(str(kind), str(text), shown, raised)
            case _:
                raise OutcomeError(f"the handler gave a {type(event).__name__}, which is no event")
    except OutcomeError:
        raise
    # Code of the host; nothing is awaited, so no cancellation is ours.
    except BaseException as error:  # noqa: BLE001
        raise OutcomeError(
            f"the {type(event).__name__} of the handler cannot be read: {describe(error)}"
        ) from None


def _stage_name(name: object) -> str:
    if not isinstance(name, str) or not is_storable(name):
        raise OutcomeError(
            f"a stage's name must be a text without NUL and lone surrogates, not {name!r:.100}",
            column="stages",
        )
    return name


def _values(values: object) -> dict[Any, Any]:
    if not isinstance(values, Mapping):
        raise OutcomeError(
            f"Completed takes a dict of columns and values, not {type(values).__name__}"
        )
    return {name: copied_value(value) for name, value in values.items()}


CATCH_UP_S = 1.0
"""How long an event loop listens once more when the time is over, in seconds."""


async def next_event(events: Events, *, within_s: float) -> AttemptEvent:
    """Return the next event; TimeoutError if none came `within_s`, nor `CATCH_UP_S` after it."""
    coming: asyncio.Task[AttemptEvent] = asyncio.create_task(
        as_host_code(partial(anext, events)), name="rowlock: hear an attempt"
    )
    # asyncio would log what was raised in the moment in which the caller is cancelled.
    coming.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait({coming}, timeout=within_s)
        while not coming.done():
            began_at = monotonic()
            await asyncio.wait({coming}, timeout=CATCH_UP_S)
            if not coming.done() and monotonic() - began_at < 2 * CATCH_UP_S:
                raise TimeoutError
    finally:
        if not coming.done():
            coming.cancel()
            # However often it is cancelled: an iterator that is being read cannot be closed.
            await finish(_ended(coming), purpose="hear no more of an attempt")
    return coming.result()


async def _ended(task: asyncio.Task[AttemptEvent]) -> None:
    await asyncio.wait({task})


PROGRESS_EVERY_S = 1.0
"""A progress is written at most so often, in seconds; the last one is kept."""


class LastProgress:
    def __init__(self) -> None:
        self.last: str | None = None
        self._text: str | None = None
        self._next_at = float("-inf")

    def set(self, text: str) -> None:
        self.last = self._text = text

    def due(self) -> str | None:
        if self._text is None or monotonic() < self._next_at:
            return None
        text, self._text = self._text, None
        self._next_at = monotonic() + PROGRESS_EVERY_S
        return text
