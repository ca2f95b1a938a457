"""What there is once in a process, and must be apart where many processes are one.

The one idea: `pipeline_hinter` has the listeners of its process, and SQLite's lockset excludes
holders of its process. Each is asked here for the process whose code runs.

Hints: a replica hints itself; whoever has no pipelines, such as a service, is heard by every
replica that runs, as if hints were passed on between processes. Some of what is said to a process
gets lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from rowlock import PipelineHinter, pipeline_hinter
from rowlock.hints import Wake
from rowlock.locks.locker import InMemoryLocker

from .processes import Process, current_process


@contextmanager
def own_process_globals(rng: Random) -> Iterator[None]:
    """Keep apart what is one per process, and lose hints, for the time of one run."""
    wake = PipelineHinter.wake
    lockers: dict[Process | None, InMemoryLocker] = {}
    in_process = InMemoryLocker.get_lockset

    def wake_perhaps(hinter: PipelineHinter, model_name: str) -> bool:
        process = current_process.get()
        if process is not None and process.hints_lost and rng.random() < process.hints_lost:
            return True
        return wake(hinter, model_name)

    def lockset(_: InMemoryLocker, namespace: str) -> Any:
        return in_process(lockers.setdefault(current_process.get(), InMemoryLocker()), namespace)

    with (
        mock.patch.object(PipelineHinter, "wake", wake_perhaps),
        mock.patch.object(pipeline_hinter, "_wakes", _Listeners()),
        mock.patch.object(InMemoryLocker, "get_lockset", lockset),
    ):
        yield


class _Listeners(dict[str, list[Wake]]):
    """The listeners of the process whose code runs, or of all if it has none."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[Process | None, dict[str, list[Wake]]] = {}

    def setdefault(self, name: str, default: Any = None) -> list[Wake]:
        return self._own().setdefault(name, default)

    def get(self, name: str, default: Any = None) -> Any:
        own = self._of.get(current_process.get())
        if own is not None:
            return own.get(name, default)
        return [
            wake
            for process, wakes in self._heard()
            for wake in wakes.get(name, ())
            if process.is_running
        ]

    def pop(self, name: str, default: Any = None) -> Any:
        return self._own().pop(name, default)

    def __contains__(self, name: object) -> bool:
        return bool(self.get(str(name)))

    def __iter__(self) -> Iterator[str]:
        own = self._of.get(current_process.get())
        return iter(
            dict.fromkeys(name for wakes in ([own] if own else self._of.values()) for name in wakes)
        )

    def _own(self) -> dict[str, list[Wake]]:
        return self._of.setdefault(current_process.get(), {})

    def _heard(self) -> Iterator[tuple[Process, dict[str, list[Wake]]]]:
        return ((process, wakes) for process, wakes in self._of.items() if process is not None)
