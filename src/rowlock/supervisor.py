"""Keeps loops running: one that ends without being asked to is logged, shown in `health`, and
replaced after a short rest.

A loop may die of a bug, or of a cancellation that was not meant for it; and a task factory of the
host's may refuse the task of a loop, which counts as its death. Each loop has a task that keeps it.
An event loop that shuts down cancels the keepers of all loops, and that is obeyed. A keeper that is
cancelled alone ends as well, since its canceller may wait for it, and another one goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from rowlock import events
from rowlock.backoff import exponential
from rowlock.clock import sleep
from rowlock.containment import begin_task
from rowlock.errors import HostCodeError, describe
from rowlock.logs import get_logger

logger = get_logger(__name__)

RESTART_DELAY_S = 0.1
RESTART_DELAY_S_MAX = 5.0

Loop = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Runs the loops of one pipeline.

    Attributes:
        restarts: how many loops were replaced since the start.
    """

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self.restarts = 0

    def keep(self, name: str, loop: Loop) -> None:
        """Run `loop` under `name` until it returns by itself or `stop` is called."""
        keeper = asyncio.create_task(
            self._keep(name, loop), name=f"rowlock: {self._pipeline} {name}"
        )
        self._keepers[name] = keeper
        keeper.add_done_callback(partial(self._keeper_over, name, loop))

    def alive(self) -> dict[str, bool]:
        """Return each loop's name and whether it runs at this moment."""
        return {
            name: name in self._loops and not self._loops[name].done() for name in self._keepers
        }

    @property
    def is_ending(self) -> bool:
        """Whether the event loop ends everything: it cancels the keepers of all loops that have
        not returned by themselves.
        """
        keepers = [task for task in self._keepers.values() if task.cancelling() or not task.done()]
        return bool(keepers) and all(task.cancelling() for task in keepers)

    async def wait(self, names: set[str], *, timeout_s: float | None = None) -> bool:
        """Wait until the loops of `names` have returned; False if that took longer than
        `timeout_s`.
        """
        keepers = [task for name, task in self._keepers.items() if name in names]
        if not keepers:
            return True
        _, pending = await asyncio.wait(keepers, timeout=timeout_s)
        return not pending

    async def stop(self) -> None:
        """Cancel what still runs and wait for its end."""
        keepers = [task for task in self._keepers.values() if not task.done()]
        for task in keepers:
            task.cancel()
        if keepers:
            await asyncio.wait(keepers)

    def _keeper_over(self, name: str, loop: Loop, keeper: asyncio.Task[None]) -> None:
        """Keep `loop` by another task, if the one that kept it was cancelled alone."""
        if keeper.cancelled() and not self.is_ending:
            self._note_death(name, asyncio.CancelledError())
            self.keep(name, loop)

    async def _keep(self, name: str, loop: Loop) -> None:
        deaths = 0
        while (error := await self._run(name, loop)) is not None:
            deaths += 1
            self._note_death(name, error)
            await sleep(exponential(deaths, first_s=RESTART_DELAY_S, most_s=RESTART_DELAY_S_MAX))

    async def _run(self, name: str, loop: Loop) -> BaseException | None:
        """Run `loop` in a task of its own and return what it died of; None if it returned by
        itself.
        """
        try:
            task = self._loops[name] = begin_task(
                _contained(loop), name=f"rowlock: {self._pipeline} {name} loop"
            )
        except KeyboardInterrupt:
            raise
        # A task factory is the host's, and may raise anything.
        except BaseException as error:  # noqa: BLE001
            return error
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    def _note_death(self, name: str, error: BaseException) -> None:
        self.restarts += 1
        # Who logs or listens may raise anything; the loop is replaced all the same.
        with suppress(BaseException):
            tell_replaced(self._pipeline, name, error)


def tell_replaced(pipeline: str, name: str, error: BaseException) -> None:
    """Log, and tell as an event, that what is called `name` has died of `error` and is replaced."""
    is_cancelled = isinstance(error, asyncio.CancelledError)
    text = "cancelled from outside" if is_cancelled else describe(error)
    logger.error(
        "%s: the %s died and is replaced: %s",
        pipeline,
        name,
        text,
        extra={"pipeline": pipeline, "loop": name, "error": text},
        exc_info=None if is_cancelled else error,
    )
    events.emit(events.LoopReplaced(pipeline, name, text))


async def _contained(loop: Loop) -> None:
    """Run `loop`; a ``SystemExit`` that leaves a task would end the whole event loop, and with it
    the host.

    A ``KeyboardInterrupt`` is let through: it is the user's, wherever it stops this thread.
    """
    try:
        await loop()
    except SystemExit as error:
        raise HostCodeError(describe(error)) from error
