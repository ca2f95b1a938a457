"""The picture: how near the drain comes to its limit, how long a pickup takes, and what a claim
costs as tables grow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from measure import POSTGRESQL, SQLITE, Figures
from report import Result

mpl.use("Agg")
from matplotlib import pyplot

OWN, LIMIT = "#00796b", "#b0bec5"
DRAINS = {"drain-100": "100 workers", "drain-10": "defaults", "drain-scheduled": "100, schedule"}
PICKUPS = {
    "pickup": "idle",
    "pickup-backlog": "backlog",
    "pickup-elsewhere": "elsewhere",
    "pickup-elsewhere-backlog": "elsewhere,\nbacklog",
}
CLAIMS = {
    "claim-settled": "settled",
    "claim-idle": "idle",
    "claim-in-flight": "leased",
    "claim-in-flight-scheduled": "leased, schedule",
}


def plot(results: list[Result], path: Path) -> None:
    """Draw what there is of the results: a row for each database."""
    medians = {(result.database, result.name): result.medians for result in results}
    figure, panels = pyplot.subplots(2, 3, figsize=(13, 7), layout="constrained")
    for line, database in zip(panels, (SQLITE, POSTGRESQL), strict=True):
        of_database = {
            name: figures for (place, name), figures in medians.items() if place == database
        }
        _drain(line[0], of_database)
        _pickup(line[1], of_database)
        _claim(line[2], of_database)
        line[0].set_title(f"{database}: drain", loc="left")
        line[1].set_title(f"{database}: pickup, ms", loc="left")
        line[2].set_title(f"{database}: a claim of 10, ms", loc="left")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _drain(panel: Any, medians: dict[str, Figures]) -> None:
    shown = {label: medians[name] for name, label in DRAINS.items() if name in medians}
    places = range(len(shown))
    panel.bar(
        [place - 0.2 for place in places],
        [each["rows/s"] for each in shown.values()],
        0.4,
        color=OWN,
    )
    limits = [each["limit rows/s"] for each in shown.values()]
    panel.bar([place + 0.2 for place in places], limits, 0.4, color=LIMIT, label="driver alone")
    for place, each in zip(places, shown.values(), strict=True):
        panel.text(
            place - 0.2,
            each["rows/s"],
            f"{each['rows/s']:,.0f}",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    panel.set_xticks(list(places), list(shown))
    panel.set_ylabel("rows/s")
    panel.yaxis.set_major_formatter("{x:,.0f}")
    if shown:
        panel.bar([0], [0], color=OWN, label="rowlock")
        _leave_headroom(panel)


def _pickup(panel: Any, medians: dict[str, Figures]) -> None:
    shown = {label: medians[name] for name, label in PICKUPS.items() if name in medians}
    bars = {
        "p50 ms": (OWN, -0.3),
        "p99 ms": ("#80cbc4", -0.1),
        "bare loop p50 ms": ("#78909c", 0.1),
        "bare loop p99 ms": (LIMIT, 0.3),
    }
    for name, (colour, offset) in bars.items():
        values = [each[name] for each in shown.values()]
        at = [place + offset for place in range(len(shown))]
        panel.bar(at, values, 0.2, color=colour, label=name.removesuffix(" ms"))
        for place, value in zip(at, values, strict=True):
            panel.text(place, value, f"{value:.1f}", ha="center", va="bottom", fontsize=8)
    panel.set_xticks(range(len(shown)), list(shown))
    if shown:
        _leave_headroom(panel)


def _claim(panel: Any, medians: dict[str, Figures]) -> None:
    for name, label in CLAIMS.items():
        if name not in medians:
            continue
        own = {
            int(key.split(":")[0].replace(",", "")): value
            for key, value in medians[name].items()
            if key.endswith(": ms")
        }
        panel.plot(list(own), list(own.values()), marker="o", label=label)
        panel.set_xscale("log")
    panel.set_xlabel("rows that cannot be claimed")
    if panel.lines:
        _leave_headroom(panel)


def _leave_headroom(panel: Any) -> None:
    panel.set_ylim(0, 1.35 * panel.get_ylim()[1])
    panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
