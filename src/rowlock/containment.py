"""Keeps code of the host from ending the event loop, as a ``SystemExit`` or ``KeyboardInterrupt``
that leaves a task does.

asyncio stores these two in the task and then raises them out of the loop itself, where no caller of
the task can catch them. So each task of rowlock's that may run code of the host is started here. A
law in ``tests/tidy`` names the few others, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from rowlock.errors import HostCodeError, describe

T = TypeVar("T")


def contained_task(
    work: Coroutine[Any, Any, T], *, name: str, context: Context | None = None
) -> asyncio.Task[T]:
    """Run `work` in a task out of which nothing ends the event loop: see `without_exits`.

    Args:
        work: is closed if the task is cancelled before its first step.
        name: of the task.
        context: the context variables of which it gets a copy; the caller's by default.
    """
    try:
        task = begin_task(without_exits(lambda: work), name=name, context=context)
    except BaseException:
        work.close()
        raise
    # One that was cancelled before its first step has not begun `work`, which Python would warn of.
    task.add_done_callback(lambda _task: work.close())
    return task


def begin_task(
    work: Coroutine[Any, Any, T], *, name: str, context: Context | None = None
) -> asyncio.Task[T]:
    """Run `work` in a task; whoever calls sees to it that nothing out of it ends the event loop, as
    `contained_task` does.

    Raises:
        BaseException: whatever a task factory of the host's refuses it with. `work` is closed then,
            or Python would warn of it.
    """
    begin = partial(asyncio.get_running_loop().create_task, work, name=name)
    try:
        # Not given to it: task factories of before Python 3.11 take no context.
        return begin() if context is None else context.run(begin)
    except BaseException:
        work.close()
        raise


async def without_exits(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call` and return its result.

    Raises:
        HostCodeError: it raised what is neither an ``Exception`` nor a cancellation, such as
            ``SystemExit``.
        Exception: whatever else it raised.
    """
    try:
        return await call()
    except (Exception, asyncio.CancelledError, GeneratorExit):
        # A GeneratorExit is Python's, which closes a task whose loop is gone.
        raise
    except BaseException as error:
        raise HostCodeError(describe(error)) from error


async def as_host_code(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call`, in a task of rowlock's, and return its result.

    Raises:
        HostCodeError: it raised what would end the event loop, or let a cancellation escape for
            which nobody had asked.
        CancelledError: this task was asked to end.
        Exception: whatever else it raised.
    """
    try:
        return await without_exits(call)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HostCodeError("a cancellation escaped that nobody had asked for") from error


def as_ordinary(error: BaseException) -> Exception:
    """Return `error` if it can be raised to a caller in a task, or else one about it.

    ``SystemExit`` and ``KeyboardInterrupt`` would end the event loop, ``StopIteration`` would turn
    into another error, and a ``CancelledError`` would look as if the caller had been cancelled.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    ordinary = HostCodeError(describe(error))
    ordinary.__cause__ = error
    return ordinary
