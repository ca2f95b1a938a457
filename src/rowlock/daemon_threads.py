"""Threads for code of the host that may never return: the process ends without them.

Python joins the threads of ``ThreadPoolExecutor`` before it ends, and ``asyncio.run`` those of
``asyncio.to_thread``: one call that hangs there keeps the process for ever.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ENDED = "ended by rowlock"
"""Says of a cancellation that the call in a thread is waited for: it is an attempt's own."""

LEFT_BEHIND = "left behind in its thread"
"""Says of a cancellation that the event loop ends, and that the call still runs."""


class DaemonThreads(Executor):
    """A pool of daemon threads. They end when it is shut down, or is collected, and nothing waits.

    Args:
        threads_max: most threads at once; further calls wait.
        name: of the threads.
    """

    def __init__(self, threads_max: int, *, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._begun = 0
        self._is_shut = False
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called in a thread; the future has its result.

        Raises:
            RuntimeError: the pool was shut down, or no thread can be begun.
        """
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._is_shut:
                raise RuntimeError("the threads were shut down")
            if not self._idle.acquire(blocking=False) and self._begun < self._threads_max:
                threading.Thread(
                    target=_work,
                    args=(self._calls, self._idle),
                    name=f"{self._name} {self._begun}",
                    daemon=True,
                ).start()
                self._begun += 1
            self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further call; threads end behind those that were submitted, unwaited for."""
        del wait, cancel_futures
        with self._lock:
            self._is_shut = True
            self._calls.put(None)


def _work(calls: SimpleQueue[Any], idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it would keep what it was called with
        idle.release()
    calls.put(None)  # for the next thread
