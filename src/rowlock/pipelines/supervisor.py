"""Keeps loops running: one that ends without being asked to is logged, shown in `health`, and replaced after a short rest.

A loop may die of a bug, or of a cancellation that was not meant for it. The cancellation of the supervising task itself is obeyed:
that is how an event loop that shuts down ends everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from rowlock import events
from rowlock.backoff import exponential
from rowlock.clock import sleep
from rowlock.errors import HostCodeError, describe
from rowlock.logs import get_logger

logger = get_logger(__name__)

RESTART_DELAY_S = 0.1
RESTART_DELAY_S_MAX = 5.0

Loop = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Runs the loops of one pipeline.

    Attributes:
        replaced: how many loops were replaced since the start.
    """

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self.replaced = 0

    def keep(self, name: str, loop: Loop) -> None:
        """Run `loop` under `name` until it returns by itself or `stop` is called."""
        self._keepers[name] = asyncio.create_task(self._keep(name, loop), name=f"rowlock: {self._pipeline} {name}")

    def alive(self) -> dict[str, bool]:
        """Return each loop's name and whether it runs at this moment."""
        return {name: name in self._loops and not self._loops[name].done() for name in self._keepers}

    @property
    def is_ending(self) -> bool:
        """Whether the event loop ends everything: somebody cancels the tasks that keep the loops."""
        return any(task.cancelling() for task in self._keepers.values())

    async def wait(self, names: set[str], *, timeout_s: float | None = None) -> bool:
        """Wait until the loops of `names` have returned; False if that took longer than `timeout_s`."""
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

    async def _keep(self, name: str, loop: Loop) -> None:
        deaths = 0
        while True:
            task = self._loops[name] = asyncio.create_task(
                _contained(loop), name=f"rowlock: {self._pipeline} {name} loop"
            )
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise
            if not task.cancelled() and task.exception() is None:
                return
            deaths += 1
            self.replaced += 1
            # Who logs or listens may raise anything; the loop is replaced all the same.
            with suppress(BaseException):
                self._tell_death(name, task)
            await sleep(exponential(deaths, first_s=RESTART_DELAY_S, most_s=RESTART_DELAY_S_MAX))

    def _tell_death(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        text = "cancelled from outside" if error is None else describe(error)
        logger.error(
            "%s: the %s died and is replaced: %s",
            self._pipeline,
            name,
            text,
            extra={"pipeline": self._pipeline, "loop": name, "error": text},
            exc_info=error,
        )
        events.emit(events.LoopReplaced(self._pipeline, name, text))


async def _contained(loop: Loop) -> None:
    """Run `loop`; a ``SystemExit`` that leaves a task would end the whole event loop, and with it the host.

    A ``KeyboardInterrupt`` is let through: it is the user's, wherever it stops this thread.
    """
    try:
        await loop()
    except SystemExit as error:
        raise HostCodeError(describe(error)) from error
