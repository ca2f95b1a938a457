"""Attempts at calls of one pipeline's host code: their threads, their deadline and their grace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rowlock.daemon_threads import DaemonThreads
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.host_code.call import Attempt, host_call
from rowlock.pipelines.host_code.deadlines import Deadlines
from rowlock.pipelines.host_code.seams import Surround
from rowlock.pipelines.host_code.surroundings import Surroundings
from rowlock.pipelines.settings import PipelineSettings

CLEANUP_S_MAX = 3600.0
"""Longest time for one `on_stale` where `process` has no limit, in seconds."""


class HostCalls:
    """Makes attempts; begun by whoever asked for them.

    Args:
        name: of the pipeline, for its threads and log lines.
        settings: bound how long a call may take, and how long it may ignore its cancellation.

    Attributes:
        threads: run plain `process` and `on_stale` functions.
    """

    def __init__(self, name: str, settings: PipelineSettings) -> None:
        self._name = name
        limit = settings.process_timeout
        self._deadlines = Deadlines(None if limit is None else limit.total_seconds())
        self._cleanup_deadlines = self._deadlines if limit else Deadlines(CLEANUP_S_MAX)
        self._grace_s = settings.cancel_grace.total_seconds()
        # Twice as many as workers: those that were left behind must not keep all others waiting.
        self.threads = DaemonThreads(2 * settings.workers_num, name=f"rowlock {name}")
        self._abandoned: list[Attempt] = []

    def attempt(
        self,
        process: Callable[..., Any],
        item: PipelineItem[Any],
        surround: Sequence[Surround] = (),
    ) -> Attempt:
        """Return an attempt at ``process(item)`` within what `surround` gives, not begun."""
        call = host_call(process, item, threads=self.threads)
        around = Surroundings(surround, item, pipeline=self._name) if surround else None
        return Attempt(call, deadlines=self._deadlines, grace_s=self._grace_s, surroundings=around)

    def cleanup(self, on_stale: Callable[..., Any], item: object, outcome: object) -> Attempt:
        """Return an attempt at ``on_stale(item, outcome)``, not begun; it always has a limit."""
        call = host_call(on_stale, item, outcome, threads=self.threads)
        return Attempt(call, deadlines=self._cleanup_deadlines, grace_s=self._grace_s)

    def abandon(self, attempt: Attempt) -> None:
        """Remember an attempt that would not end, and forget those that have ended meanwhile."""
        self._abandoned = [*self.abandoned(), attempt]

    def abandoned(self) -> list[Attempt]:
        """Return the abandoned attempts that still run; bounded by what the host lets hang."""
        return [attempt for attempt in self._abandoned if attempt.is_running]

    def close(self) -> None:
        """Let the threads end, unless an abandoned call still runs: its late result may want one
        to be cleaned up in.
        """
        if not self.abandoned():
            self.threads.shutdown(wait=False)
