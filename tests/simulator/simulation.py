"""`simulate` and `Simulation`: play a scenario by a number, or by thousands of them.

The one idea: one integer is the whole history, byte for byte. A run that fails tells its number,
and that number tells it again, with the story of the row concerned.

Real pipelines and managers, a real SQLAlchemy engine and a real SQLite file run on a loop whose
time is virtual; all chance, also that of tokens and jitter, comes from that integer
(``environment/``). Replicas are killed and restarted, frozen for longer than their leases and
thawed, shut down with and without grace; the database is away, slow, loses connections and the
answers of COMMITs; hints get lost or come too early; wall clocks are wrong by up to an hour
(``faults/``). Then all that ends, every row must settle, each phase of its way within a bound, and
one checker judges what the database wrote down (``judge/``), and the simulation what it alone
knows: who did it.

Not here: threads (plain ``process`` functions run in the loop, and so do renewals), sockets, and
PostgreSQL.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from .environment.engines import Engines, Schema
from .judge.state import Place
from .quiescence import tables_of
from .run import SimulationRun
from .scenario import Scenario, World
from .trace import Entry, Trace, Wrong

STORIES_MAX: Final = 3
"""Of so many rows a failure tells the story."""
LINES_MAX: Final = 300
"""Most lines of a story that a failure tells; the last ones are shown."""
WRONGS_MAX: Final = 20
"""Most broken promises that a failure names."""
QUIET: Final = ("rowlock", "sqlalchemy.pool", "asyncio")
"""Loggers that would tell of every fault."""


class PromiseBrokenError(AssertionError):
    """A run of a simulation broke a promise; the text says which one, tells the row's story, and
    how to replay it.

    Attributes:
        report: of the run.
    """

    def __init__(self, report: SimulationReport) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class SimulationReport:
    """One run.

    Attributes:
        seed: its number.
        wrongs: promises that were broken; empty if all is well.
        entries: what happened, in order.
        quiet_after_s: how long after the last fault all rows had settled. **Unit** virtual seconds.
        replay: the command that plays it again.
    """

    seed: int
    wrongs: list[Wrong]
    entries: list[Entry]
    quiet_after_s: float
    replay: str
    fingerprint: str = field(default="", repr=False)

    @property
    def is_good(self) -> bool:
        return not self.wrongs

    def story_of(self, place: Place | None) -> list[Entry]:
        """Return what happened to one row (its table and its key as text) and to everybody; all
        of it if there is no row.
        """
        return [entry for entry in self.entries if place is None or entry.place in {None, place}]

    def __str__(self) -> str:
        if self.is_good:
            return (
                f"seed {self.seed}: all is well, settled {self.quiet_after_s:.1f} s after the last"
                " fault"
            )
        lines = [
            f"seed {self.seed} broke a promise:",
            *(f"  {wrong}" for wrong in self.wrongs[:WRONGS_MAX]),
            f"replay it: {self.replay}",
        ]
        for place in list(dict.fromkeys(wrong.place for wrong in self.wrongs))[:STORIES_MAX]:
            lines += [
                "",
                "what happened:" if place is None else f"what happened to {place[0]} {place[1]}:",
            ]
            story = self.story_of(place)
            left_out = len(story) - LINES_MAX
            lines += (
                [f"  ... {left_out} lines before; --story, or story_of(), tells them"]
                if left_out > 0
                else []
            )
            lines += map(str, story[-LINES_MAX:])
        return "\n".join(lines)

    def check(self) -> Self:
        """Return the report itself.

        Raises:
            PromiseBrokenError: a promise was broken.
        """
        if not self.is_good:
            raise PromiseBrokenError(self)
        return self


class Simulation:
    """A scenario with its database file and engines, for many runs; `simulate` is enough for one.

    Attributes:
        replay: the command that plays a run again; ``{seed}`` stands for its number.
    """

    def __init__(self, scenario: type[Scenario], *, replay: str | None = None) -> None:
        self.replay = f"simulate({scenario.__name__}, seed={{seed}})" if replay is None else replay
        self._scenario = scenario
        self._engines = Engines(lambda engines: _schema(scenario, engines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engines.close()

    def run(self, seed: int) -> SimulationReport:
        levels = {name: logging.getLogger(name).level for name in QUIET}
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        play = SimulationRun(self._scenario, self._engines, seed)
        try:
            play.run()
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
        told = play.trace
        return SimulationReport(
            seed,
            told.wrongs,
            told.entries,
            play.quiet_after_s,
            self.replay.format(seed=seed),
            _fingerprint(told),
        )

    def run_all(self, seeds: Iterable[int]) -> Iterator[SimulationReport]:
        return map(self.run, seeds)


def simulate(scenario: type[Scenario], *, seed: int) -> SimulationReport:
    """Play a scenario once, all of it drawn from `seed`, and return what happened.

    Raises:
        PromiseBrokenError: a promise was broken; it tells which, and how to replay the run.
    """
    with Simulation(scenario) as simulation:
        return simulation.run(seed).check()


def _schema(scenario: type[Scenario], engines: Engines) -> Schema:
    probe = scenario(World(0, engines, Trace(engines.file)))
    models = [*probe.models, *(leased.model for leased in tables_of(probe.pipelines()).values())]
    return Schema(models, probe.watched, list(probe.schema))


def _fingerprint(told: Trace) -> str:
    text = "\n".join([*map(str, told.entries), *map(repr, told.changes)])
    return hashlib.sha256(text.encode()).hexdigest()
