"""A deterministic simulator for pipelines: several replicas, one number, everything that can go
wrong.

The one idea: real pipelines and managers, a real SQLAlchemy engine and a real SQLite file run on a
loop whose time is virtual; all chance, also that of tokens and jitter, comes from one integer. The
same integer gives the same history, byte for byte.

    class Volumes(Scenario):
        def __init__(self, world):
            super().__init__(world) self.cloud = Cloud()                          # what lives
            outside the database, shared by the replicas of a run

        def pipelines(self):
            return [VolumePipeline(self.cloud)]           # for each replica, and again when one is
            restarted

        def rows(self):
            return [Volume(name=f"{number}") for number in range(self.world.random.randint(1, 8))]

        def check(self):
            assert len(self.cloud.disks) == len(self.world.read(Volume))

    def test_volumes(seed): simulate(Volumes, seed=seed)

Replicas are killed and restarted, frozen for longer than their leases and thawed, shut down with
and without grace; the database is away, slow, loses connections and the answers of COMMITs; hints
get lost or come too early; wall clocks are wrong by up to an hour. Then all that ends, every row
must settle, each phase of its way within a bound, and the one checker
(``rowlock.testing.judge.checker``) judges what the database wrote down, and the simulation what it
alone knows: who did it.

Not here: threads (plain ``process`` functions run in the loop, and so do renewals), sockets, and
PostgreSQL.
"""

from __future__ import annotations

from rowlock.testing.simulation.command import run_command
from rowlock.testing.simulation.faults.fault_kinds import Fault
from rowlock.testing.simulation.scenario import Scenario, World
from rowlock.testing.simulation.simulation import (
    PromiseBrokenError,
    Simulation,
    SimulationReport,
    simulate,
)
from rowlock.testing.simulation.trace import Entry, Wrong

__all__ = [
    "Entry",
    "Fault",
    "PromiseBrokenError",
    "Scenario",
    "Simulation",
    "SimulationReport",
    "World",
    "Wrong",
    "run_command",
    "simulate",
]
