"""One run: everything goes wrong for a while, then nothing does, and all rows must settle in a
bounded time.

Not here: what goes wrong (``faults.py``), and who takes part (``participants.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import rowlock
from rowlock import subscribe

from .environment.engines import Engines
from .environment.loop import SimulationLoop
from .environment.process_globals import own_process_globals
from .environment.randomness import all_randomness_from
from .faults.conditions import Conditions
from .faults.fault_kinds import ALL_ALONG
from .faults.schedule import Disturber
from .hints import look_at_hints
from .judge.checker import check
from .judge.state import Place
from .participants import Participants
from .quiescence import Quiescence
from .rows import put_at_once, put_rows
from .scenario import Scenario, World
from .trace import Trace, reason

LATENCIES_S: Final = (0.0, 0.001, 0.005)
"""How long one way to the database takes on average. **Unit** virtual seconds."""
HOST_WAITS_S: Final = 1000.0
"""How long whoever adds rows waits for the file's lock, which a frozen process may keep.
**Unit** virtual seconds.
"""
PAUSE_S_MAX: Final = 2.0
"""How often it is looked whether all has settled. **Unit** virtual seconds."""
SETTLE_S_MAX: Final = 50_000.0
"""How long rows may take to settle at most, whatever the phases of their way allow. **Unit**
virtual seconds.
"""
SERVED_S_MAX: Final = 300.0
"""How long is waited for services once the faults are over, if all rows have settled. **Unit**
virtual seconds.
"""
VIRTUAL_S_MAX: Final = 100_000.0
ITERATIONS_MAX: Final = 1_000_000
"""How many turns of the loop a run may take: what bounds its real time, at about ten thousand a
second.
"""
GHOSTS_S: Final = 60.0
"""How long what is left of dead processes may take to end, once all is over. **Unit** virtual
seconds.
"""
OURS: Final = Path(rowlock.__file__).parent


class SimulationRun:
    """Plays what was drawn from `seed`.

    Attributes:
        trace: what happened.
        quiet_after_s: how long after the last fault all had settled.
    """

    def __init__(self, scenario_class: type[Scenario], engines: Engines, seed: int) -> None:
        engines.clean()
        self.quiet_after_s = 0.0
        self._engines, self._rng, self._seed = engines, Random(seed), seed
        self.trace = Trace(engines.file)
        self._world = World(seed, engines, self.trace)
        self._scenario_class = scenario_class

    def run(self) -> None:
        """Play on a loop of its own; an exception out of it is a broken promise, too."""
        with ExitStack() as stack:
            stack.enter_context(all_randomness_from(self._seed, wall_time=self._wall_time))
            stack.enter_context(own_process_globals(self._rng))
            stack.callback(subscribe(self.trace.hear))
            self._scenario = self._scenario_class(self._world)
            services = list(self._scenario.services())
            lives = (
                2 * self._scenario.replicas_num + self._scenario.faults_num_max + len(services) + 1
            )
            self._engines.have_engines(lives)
            self._participants = Participants(
                self._scenario,
                world=self._world,
                engines=self._engines,
                trace=self.trace,
                rng=self._rng,
                conditions=Conditions.drawn(self._scenario.faults, seed=self._seed),
            )
            stack.enter_context(self._participants.host.at_home())
            runner = stack.enter_context(asyncio.Runner(loop_factory=_new_loop))
            self._loop = cast("SimulationLoop", runner.get_loop())
            self._loop.set_exception_handler(self._hear_of_error)
            try:
                runner.run(self._run(services))
            except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - told as a verdict
                self.trace.wrong(f"the run ended with {reason(error)}")
            finally:
                runner.run(self._reap())

    async def _run(self, services: list[Any]) -> None:
        participants, rng, scenario = self._participants, self._rng, self._scenario
        participants.latency_s = rng.choice(LATENCIES_S)
        for line in participants.conditions.told():
            self.trace.record(line)
        rows = list(scenario.rows())
        host, pooled = participants.new_process("host")
        host.faulty_connection.busy_timeout_s = HOST_WAITS_S
        at_once = rng.randint(0, len(rows))
        await put_at_once(pooled.session_factory, rows[:at_once])
        replicas = [participants.new_replica() for _ in range(scenario.replicas_num)]
        self.trace.tables = {
            pipeline.name: pipeline.leased.table.name for pipeline in replicas[0].pipelines
        }
        # Replicas may differ, as in the middle of a deployment: the longest lease counts.
        by_length = sorted(
            (one for replica in replicas for one in replica.pipelines),
            key=lambda one: one.settings.lock_timeout,
        )
        self._settings = {pipeline.name: pipeline.settings for pipeline in by_length}
        pace_s = min(
            pipeline.settings.lock_timeout.total_seconds() for pipeline in replicas[0].pipelines
        )
        kinds = [kind for kind in scenario.faults if kind not in ALL_ALONG]
        disturber = Disturber(participants, kinds=kinds, pace_s=pace_s, trace=self.trace, rng=rng)
        putting = put_rows(
            pooled.session_factory, rows[at_once:], pace_s=pace_s, trace=self.trace, rng=rng
        )
        coming = host.spawn(putting, name="rows come")
        for service in services:
            participants.new_service(service)
        await disturber.disturb(rng.randint(0, scenario.faults_num_max))
        await asyncio.sleep(pace_s * rng.choice((0, 0.3, 1.5)))
        self.trace.record("the faults are over")
        disturber.calm()
        self._world.is_calm = True
        await coming
        while len(participants.in_service) < scenario.replicas_num:
            participants.new_replica()
        quiescence = Quiescence(
            self._engines,
            # Of those that are to bring it about: what a dead one knows is of no use.
            [one for replica in participants.in_service for one in replica.pipelines],
            scenario=scenario,
            trace=self.trace,
            round_trip_s=participants.conditions.round_trip_s,
            held=self._held,
        )
        if await self._settle(quiescence):
            await look_at_hints(
                scenario,
                participants.in_service,
                self.trace,
                round_trip_s=participants.conditions.round_trip_s,
            )
        await self._end()
        self._judge()

    def _held(self) -> set[Place]:
        """Return the rows that a living replica holds, and has not lost."""
        names = [replica.process.name for replica in self._participants.in_service]
        return {place for name in names for place in self.trace.held_by(name)}

    async def _settle(self, quiescence: Quiescence) -> bool:
        loop, within = asyncio.get_running_loop(), self._scenario.settle_within
        began_at = loop.time()
        ends_at = began_at + (SETTLE_S_MAX if within is None else within.total_seconds())
        pause_s = 0.1
        # Work without an end has looked before it is asked: a service may have come in between.
        wanted, found = 2 if self._scenario.keeps_leases else 1, 0
        while True:
            left = quiescence.left()
            is_served = self._participants.is_served and loop.time() < began_at + SERVED_S_MAX
            found = 0 if left or is_served else found + 1
            if found == wanted:
                break
            late = quiescence.late(
                [place for place, _ in left],
                hungry=self._participants.hungry,
                served=self._participants.is_served,
            )
            if not late and loop.time() > ends_at:
                waited_s = ends_at - began_at
                late = [
                    (place, f"has not settled {waited_s:g} s after the faults: {matter}")
                    for place, matter in left
                ]
            for place, text in late:
                self.trace.wrong(text, place=place)
            if late:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, PAUSE_S_MAX)
        self.quiet_after_s = loop.time() - began_at
        self.trace.record("all has settled")
        return True

    async def _end(self) -> None:
        participants = self._participants
        for replica in participants.in_service:
            replica.shut_down(PAUSE_S_MAX, self.trace)
        endings = [
            one.ending
            for one in participants.replicas
            if one.ending is not None and one.process.is_alive
        ]
        if endings:
            _, pending = await asyncio.wait(endings, timeout=GHOSTS_S)
            if pending:
                self.trace.wrong(
                    f"{len(pending)} replicas were shut down and have not ended after"
                    f" {GHOSTS_S:g} s"
                )
        for replica in participants.replicas:
            if replica.ending is not None and replica.process.is_alive and replica.ending.done():
                replica.ending.result()

    def _judge(self) -> None:
        self.trace.read_changes()
        violations = check(
            self.trace.changes,
            stopped=True,
            lock_timeouts={
                name: settings.lock_timeout for name, settings in self._settings.items()
            },
            attempts_max={name: settings.max_attempts for name, settings in self._settings.items()},
            services_own=self._scenario.services_own,
        )
        for violation in violations:
            place = (violation.table, violation.key)
            # A lease that is lost in the end, while it is written slowly, is free by itself.
            if violation.promise != "B5" or not self.trace.is_lost(place):
                self.trace.wrong(f"{violation.promise}: {violation.text}", place=place)
        self._mourn()
        try:
            self._scenario.check()
        except KeyboardInterrupt:
            raise
        # Whatever the host's check does; pytest.fail() is no Exception.
        except BaseException as error:  # noqa: BLE001
            self.trace.wrong(f"the check fails: {reason(error)}")

    def _mourn(self) -> None:
        for task, process, file in self._loop.unasked():
            error = reason(task.exception() or AssertionError())
            text = f"{process.name}: the task {task.get_name()} died, and nobody asked why: {error}"
            is_ours = Path(file).is_relative_to(OURS) and not Path(file).is_relative_to(
                OURS / "testing"
            )
            (self.trace.wrong if is_ours else self.trace.record)(f"B3: {text}" if is_ours else text)

    async def _reap(self) -> None:
        """End what is left of dead processes, now that nobody can be harmed."""
        self._participants.raise_the_dead()
        for _ in range(int(GHOSTS_S)):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _wall_time(self) -> datetime:
        return self._world.utc_now()

    def _hear_of_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        if str(context.get("message", "")).startswith("Exception in callback"):
            self.trace.wrong(f"a callback failed: {context.get('exception')!r}")


def _new_loop() -> SimulationLoop:
    return SimulationLoop(max_virtual_s=VIRTUAL_S_MAX, max_iterations=ITERATIONS_MAX)
