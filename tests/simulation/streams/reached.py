"""Counts which variants of flows were reached by runs, and what befell them: where a count is
zero, nothing was proved of it.

The one idea: what a run was like is read from its story. What no event tells, the scenario writes
down at the end (`REACHED`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from ...simulator.simulation import SimulationReport

REACHED: Final = "reached: "
"""Begins a line of the scenario's own."""

TOLD: Final = {
    "killed": r"is killed",
    "frozen": r"is frozen",
    "shut down": r"is shut down",
    "database away": r"reaches? the database for",
    "slow database": r"each way to the database takes",
    "lost statement": r"before statement|after statement",
    "COMMIT not answered": r"after COMMIT",
    "lost hints": r"of all hints get lost",
    "lost lease": r"LeaseExpired",
    "shard opened again": r"ShardOpened .* step [1-9]",
    "steps replayed": r"ShardReplayed",
    "failed step": r"StepFailed",
    "parked shard": r"StepFailed .*is_parked True",
    "checkpoint behind steps": r"StepCut .*is_checkpoint False",
    "snapshot cut": r"StepCut .*is_snapshot True",
}
"""Variants that events and faults tell of, and how."""

ENOUGH: Final = 200
"""Among so many runs each variant is expected."""

NOTED: Final = (
    *("one stage", "two stages", "three stages"),
    *("checkpoint every step", "checkpoint every 7 steps"),
    *("dynamic shards", "split", "join", "shard at another replica"),
    *("rows expired", "snapshot read", "results consumed"),
    *("flow over results", "fold", "host writes a folded row"),
)
"""Variants that scenarios note."""


def variants_of(report: SimulationReport) -> set[str]:
    texts = [entry.text for entry in report.entries]
    found = {text.removeprefix(REACHED) for text in texts if text.startswith(REACHED)}
    for name, pattern in TOLD.items():
        if any(re.search(pattern, text) for text in texts):
            found.add(name)
    return found


def counted(
    reports: Iterable[SimulationReport], counts: Counter[str]
) -> Iterator[SimulationReport]:
    for report in reports:
        counts.update(variants_of(report))
        yield report


def table(counts: Counter[str]) -> str:
    """Return how many runs have reached each variant, as lines of text."""
    return "\n".join(f"{counts[name]:6}  {name}" for name in (*NOTED, *TOLD))


def never_reached(counts: Counter[str], *, runs: int) -> list[str]:
    """Return the variants that none of so many runs has reached, if those are enough to say so."""
    return [name for name in (*NOTED, *TOLD) if not counts[name] and runs >= ENOUGH]
