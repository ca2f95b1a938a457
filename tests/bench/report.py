"""What comes out: a line of text per figure, JSON for later, and a picture for the docs."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measure import Figures, Measure


@dataclass(frozen=True)
class Result:
    name: str
    title: str
    database: str
    rounds: list[Figures]

    @property
    def medians(self) -> Figures:
        return {
            name: statistics.median(each[name] for each in self.rounds) for name in self.rounds[0]
        }


def print_result(result: Result) -> None:
    """Print medians, with the spread where there was more than one round."""
    print(
        f"\n{result.database}: {result.title} [{result.name}], {len(result.rounds)} rounds",
        flush=True,
    )
    for name, median in result.medians.items():
        values = [each[name] for each in result.rounds]
        spread = f"   ({_text(min(values))} - {_text(max(values))})" if len(values) > 1 else ""
        print(f"    {name:<30}{_text(median):>12}{spread}", flush=True)


def print_failure(measure: Measure, database: str, error: BaseException) -> None:
    print(
        f"\n{database}: {measure.title} [{measure.name}] failed: {type(error).__name__}: {error}",
        flush=True,
    )


def write_json(results: list[Result], path: Path, *, command: str, load_before: float) -> None:
    document: dict[str, Any] = {
        "command": command,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "results": [asdict(result) | {"medians": result.medians} for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Result]:
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    return [Result(each["name"], each["title"], each["database"], each["rounds"]) for each in found]


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
