"""Measures, asserts nothing: ``python tests/bench`` prints a table; the numbers are read by people.

Absolute figures move with the machine and with what else it does; compare ratios within one run. Runs on SQLite in a temporary
folder and on a PostgreSQL of its own with default durability (``--postgresql URL`` names another one).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from drain import drain
from host import Host
from pickup import pickup

from rowlock.testing.databases import PostgresqlServer

Measure = Callable[[Host], Awaitable[dict[str, float]]]


async def measure_all(name: str, url: str, rounds: int, rows: int) -> None:
    """Print one line per measure, medians over `rounds` with the spread."""
    measures: dict[str, Measure] = {
        f"drain {rows} rows, 20 workers": lambda host: drain(host, rows=rows, workers=20),
        f"drain {rows} rows, defaults": lambda host: drain(host, rows=rows, workers=10),
        "pickup, idle": lambda host: pickup(host, samples=200, backlog=0),
        "pickup, backlog of 5,000": lambda host: pickup(host, samples=100, backlog=5_000),
    }
    for label, measure in measures.items():
        results = []
        for _ in range(rounds):
            async with Host.opened(url) as host:
                results.append(await measure(host))
        figures = ", ".join(
            f"{key} {statistics.median(values):,.1f} ({min(values):,.1f}-{max(values):,.1f})"
            for key in results[0]
            for values in [[result[key] for result in results]]
        )
        print(f"{name:<11} {label:<28} {figures}", flush=True)


def main() -> None:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", metavar="URL", help="postgresql+asyncpg://... of an empty database")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}")
    with tempfile.TemporaryDirectory(prefix="rowlock-bench-") as folder:
        asyncio.run(measure_all("SQLite", f"sqlite+aiosqlite:///{folder}/bench.db", options.rounds, options.rows))
        if options.postgresql:
            asyncio.run(measure_all("PostgreSQL", options.postgresql, options.rounds, options.rows))
            return
        server = PostgresqlServer(Path(tempfile.mkdtemp(prefix="rowlock-bench-", dir="/tmp")), durable=True)
        try:
            url = server.start().render_as_string(hide_password=False)
            asyncio.run(measure_all("PostgreSQL", url, options.rounds, options.rows))
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
