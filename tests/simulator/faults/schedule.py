"""What goes wrong, drawn from the seed.

The one idea: each run draws which kinds of fault it has at all, then one fault after the other with
a rest between, from nothing to half a lease. Some happen at once, others are arranged to meet one
of the next statements, so that every boundary between two statements is hit sooner or later.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final

from ..environment.faulty_connection import SimulatedConnection, Trouble, lost
from ..environment.processes import Process
from ..participants import Participants, SimulatedReplica
from ..trace import Trace
from .fault_kinds import Fault

STATEMENTS_MAX: Final = 12
"""What is arranged meets one of so many next statements."""
SKEW_MAX: Final = timedelta(hours=1)
"""How wrong a wall clock may be."""
SLOWER: Final = (0.02, 0.1, 0.4)
"""How long one way to a slow database takes on average. **Unit** virtual seconds."""


class Disturber:
    """Makes things go wrong.

    Attributes:
        pace_s: the shortest lease; faults last for a fraction or a multiple of it.
    """

    def __init__(
        self,
        participants: Participants,
        *,
        kinds: list[Fault],
        pace_s: float,
        trace: Trace,
        rng: Random,
    ) -> None:
        self.pace_s = pace_s
        self._participants, self._trace, self._rng = participants, trace, rng
        self._kinds = sorted(
            rng.sample(kinds, rng.randint(min(1, len(kinds)), len(kinds))),
            key=lambda kind: kind.name,
        )
        # What is arranged runs as the process that it meets; what follows from it must not stop
        # with that process.
        self._outside = copy_context()
        self._is_over = False
        self._acts: dict[Fault, Callable[[], None]] = {
            Fault.KILL: self._kill,
            Fault.FREEZE: self._freeze,
            Fault.OUTAGE: self._outage,
            Fault.CUT: self._cut,
            Fault.SLOW: self._slow,
            Fault.STATEMENT: self._spoil_statement,
            Fault.COMMIT: self._spoil_commit,
            Fault.HINTS: self._lose_hints,
            Fault.EARLY_HINT: self._hint,
            Fault.SHUT_DOWN: self._shut_down,
            Fault.CLOCK: self._set_clock,
        }

    async def disturb(self, faults_num: int) -> None:
        for _ in range(faults_num if self._kinds else 0):
            await asyncio.sleep(self.pace_s * self._rng.choice((0, 0.01, 0.05, 0.15, 0.5)))
            self._acts[self._rng.choice(self._kinds)]()

    def calm(self) -> None:
        self._is_over = True
        for process in self._participants.processes:
            process.faulty_connection.troubles.clear()
            process.faulty_connection.latency_s = self._participants.latency_s
            process.hints_lost = 0.0
            process.faulty_connection.heal()
            process.thaw()

    def _kill(self) -> None:
        process = self._any_process()
        if self._perhaps(0.3):
            self._trace.record(f"{process.name} is killed")
            self._die(process)
        else:
            self._arrange(process, self._killed_at, what="will be killed")

    async def _killed_at(self, connection: SimulatedConnection) -> None:
        process = self._process_of(connection)
        self._trace.record("is killed here")
        self._die(process)
        await asyncio.get_running_loop().create_future()

    def _die(self, process: Process) -> None:
        process.kill()
        self._later(self.pace_s * self._rng.choice((0, 0.1, 0.5)), self._restart)

    def _freeze(self) -> None:
        process = self._any_process()
        if self._perhaps(0.3):
            self._trace.record(f"{process.name} is frozen")
            self._stand_still(process)
        else:
            self._arrange(process, self._frozen_at, what="will be frozen")

    async def _frozen_at(self, connection: SimulatedConnection) -> None:
        self._trace.record("is frozen here")
        self._stand_still(self._process_of(connection))
        await asyncio.sleep(0)

    def _stand_still(self, process: Process) -> None:
        seconds = self.pace_s * self._rng.choice((0.2, 0.9, 1.1, 2.5))
        process.freeze()
        if self._perhaps(0.7):
            # A frozen client that leaves a transaction open is thrown out by a server that has a
            # limit for that.
            self._later(seconds * self._rng.choice((0, 0.1, 0.5)), lambda: _evict(process))
        self._later(seconds, lambda: self._thaw(process))

    def _thaw(self, process: Process) -> None:
        if not process.is_running and process.is_alive:
            self._trace.record(f"{process.name} goes on")
            process.thaw()

    def _outage(self) -> None:
        seconds, hangs = self._duration_s(), self._perhaps(0.5)
        self._trace.record(
            f"nobody reaches the database for {seconds:.2f} s{', and nobody is told so' * hangs}"
        )
        for process in self._participants.processes:
            self._cut_off(process, seconds, hangs=hangs)

    def _cut(self) -> None:
        process, seconds, hangs = self._any_process(), self._duration_s(), self._perhaps(0.5)
        told = ", and is not told so" * hangs
        self._trace.record(f"{process.name} does not reach the database for {seconds:.2f} s{told}")
        self._cut_off(process, seconds, hangs=hangs)

    def _cut_off(self, process: Process, seconds: float, *, hangs: bool) -> None:
        process.faulty_connection.cut(hangs=hangs)
        self._later(seconds, process.faulty_connection.heal)

    def _slow(self) -> None:
        latency_s, seconds = self._rng.choice(SLOWER), self._duration_s()
        self._trace.record(f"each way to the database takes {latency_s:g} s, for {seconds:.2f} s")
        for process in self._participants.processes:
            self._slow_down(process, latency_s, seconds)

    def _slow_down(self, process: Process, latency_s: float, seconds: float) -> None:
        faulty_connection = process.faulty_connection
        faulty_connection.latency_s = latency_s
        self._later(
            seconds, partial(setattr, faulty_connection, "latency_s", self._participants.latency_s)
        )

    def _spoil_statement(self) -> None:
        process = self._any_process()
        if self._perhaps(0.4):
            self._arrange(process, _refuse, what="will be refused", answers=False)
        else:
            self._arrange(process, _lose, what="will lose its connection")

    def _spoil_commit(self) -> None:
        self._arrange(
            self._any_process(), _lose, what="will lose its connection at a COMMIT", commits=True
        )

    def _lose_hints(self) -> None:
        share, seconds = self._rng.choice((0.5, 1.0)), self._duration_s()
        self._trace.record(f"{share:.0%} of all hints get lost for {seconds:.2f} s")
        for process in self._participants.processes:
            process.hints_lost = share
            self._later(seconds, partial(setattr, process, "hints_lost", 0.0))

    def _hint(self) -> None:
        self._trace.record("everybody is hinted for nothing")
        for replica in self._participants.in_service:
            for pipeline in replica.pipelines:
                replica.process.call(pipeline.hint)

    def _shut_down(self) -> None:
        if in_service := self._participants.in_service:
            replica = self._rng.choice(in_service)
            grace_s = self.pace_s * self._rng.choice((0, 0.05, 0.5, 2))
            self._trace.record(
                f"{replica.process.name} is shut down, with a grace of {grace_s:g} s"
            )
            replica.shut_down(grace_s, self._trace)
            self._later(self.pace_s * self._rng.choice((0, 0.1)), self._restart)

    def _set_clock(self) -> None:
        process = self._any_process()
        process.skew = SKEW_MAX * self._rng.uniform(-1, 1)
        self._trace.record(
            f"the wall clock of {process.name} is now wrong by {process.skew.total_seconds():.0f} s"
        )

    def _restart(self) -> None:
        if not self._is_over:
            self._started(self._participants.new_replica())

    def _started(self, replica: SimulatedReplica) -> None:
        replica.process.skew = SKEW_MAX * self._rng.uniform(-1, 1)

    def _arrange(
        self,
        process: Process,
        act: Callable[[SimulatedConnection], Awaitable[None]],
        *,
        what: str,
        commits: bool = False,
        answers: bool | None = None,
    ) -> None:
        left = self._rng.randrange(3 if commits else STATEMENTS_MAX)
        after = self._perhaps(0.5) if answers is None else answers
        which = (
            f"{'after' if after else 'before'} {'COMMIT' if commits else 'statement'} {left + 1}"
            " from now"
        )
        self._trace.record(f"{process.name} {what}, {which}")
        process.faulty_connection.troubles.append(
            Trouble(act, left, commits=commits, answers=after)
        )

    def _process_of(self, connection: SimulatedConnection) -> Process:
        return next(
            process
            for process in self._participants.processes
            if process.faulty_connection is connection.faulty_connection
        )

    def _any_process(self) -> Process:
        # Replicas twice: they are what this is about.
        replicas = [replica.process for replica in self._participants.in_service]
        return self._rng.choice(
            [*replicas, *replicas, *self._participants.processes]
            or [self._participants.new_replica().process]
        )

    def _perhaps(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _duration_s(self) -> float:
        return self.pace_s * self._rng.choice((0.05, 0.2, 0.8, 1.5))

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(seconds, act, context=self._outside.copy())


async def _lose(connection: SimulatedConnection) -> None:
    connection.drop()
    raise lost()


async def _refuse(_: SimulatedConnection) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    raise error


def _evict(process: Process) -> None:
    if not process.is_running:
        for connection in list(process.faulty_connection.connections):
            if connection.in_transaction:
                connection.drop()
