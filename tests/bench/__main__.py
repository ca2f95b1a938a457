"""Measures, asserts nothing: ``python tests/bench`` prints a table; the numbers are read by people.

Absolute figures move with the machine and with what else it does; compare ratios within one run.
Runs on SQLite in a temporary folder and on a PostgreSQL of its own with default durability
(``--postgresql URL`` names another one; its tables ``jobs``, ``scheduled_jobs`` and
``rowlock_stream_*`` are dropped, with peers the schema ``bench_peer``, too). Graphs are measured
without a database.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import NOWHERE, POSTGRESQL, SQLITE, Measure, Place, Scale
from report import Result, print_failure, print_result, read_json, write_json
from table import MEASURES, PEERS

from rowlock.testing import PostgresqlServer

SECONDS_MAX = 600
"""Longest time for one round of one measure."""


def arguments() -> argparse.Namespace:
    names = ", ".join(measure.name for measure in (*MEASURES, *PEERS))
    parser = argparse.ArgumentParser(
        prog="python tests/bench", description=__doc__, epilog=f"measures: {names}"
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help="by name; all without")
    parser.add_argument("--quick", action="store_true", help="one round, smaller and shorter")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="other libraries too; installs them from the package index",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rows", type=int, help="how many are drained; 20,000, or 2,000 in a quick run"
    )
    parser.add_argument(
        "--only",
        choices=[SQLITE.lower(), POSTGRESQL.lower()],
        help="one of the databases, and no graphs without one",
    )
    parser.add_argument(
        "--postgresql", metavar="URL", help="postgresql+asyncpg://... of a database for it alone"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a picture")
    parser.add_argument(
        "--from-json",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; show earlier runs",
    )
    options = parser.parse_args()
    if unknown := set(options.measures) - {measure.name for measure in (*MEASURES, *PEERS)}:
        parser.error(f"no measure is named {', '.join(sorted(unknown))}; there are {names}")
    return options


def chosen(options: argparse.Namespace) -> list[Measure]:
    """Return what is asked for: by name, or all but the peers."""
    if options.measures:
        return [measure for measure in (*MEASURES, *PEERS) if measure.name in options.measures]
    return [*MEASURES, *PEERS] if options.peers else [*MEASURES]


@contextmanager
def places(options: argparse.Namespace, names: set[str]) -> Iterator[list[Place]]:
    """Open the databases that are asked for, of those in `names`; take away what was made."""
    wanted = {name for name in names if options.only in (None, name.lower())}
    with tempfile.TemporaryDirectory(prefix="rowlock-bench-") as folder:
        found = {
            NOWHERE: Place(NOWHERE, ""),
            SQLITE: Place(SQLITE, f"sqlite+aiosqlite:///{folder}/bench.db"),
        }
        server = None
        if options.postgresql:
            found[POSTGRESQL] = Place(POSTGRESQL, options.postgresql)
        elif POSTGRESQL in wanted:
            # The path of a socket has to be short.
            directory = Path(tempfile.mkdtemp(prefix="rowlock-bench-", dir="/tmp"))
            server = PostgresqlServer(directory, durable=True)
        try:
            if server is not None:
                url = server.start().render_as_string(hide_password=False)
                found[POSTGRESQL] = Place(POSTGRESQL, url)
            yield [place for name, place in found.items() if name in wanted]
        finally:
            if server is not None:
                server.stop()
                shutil.rmtree(server.directory, ignore_errors=True)


def measured(measure: Measure, place: Place, options: argparse.Namespace) -> Result | None:
    """Run the rounds of one measure; None if it failed, which stops no other."""
    rounds = []
    rows = options.rows or (2_000 if options.quick else 20_000)
    for number in range(1 if options.quick else min(options.rounds, measure.rounds_max)):
        scale = Scale(rows, quick=options.quick, limit_first=number % 2 == 1)
        try:
            rounds.append(asyncio.run(asyncio.wait_for(measure.run(place, scale), SECONDS_MAX)))
        except Exception as error:  # noqa: BLE001 - the other measures are still worth their time
            print_failure(measure, place.name, error)
            return None
    return Result(measure.name, measure.title, place.name, rounds)


def main() -> None:
    options = arguments()
    # So that a run that is told to end stops its server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.from_json:
        results = [result for file in options.from_json for result in read_json(file)]
        for result in results:
            print_result(result)
    else:
        results = measure_all(options)
    if options.plot:
        from plot import plot  # noqa: PLC0415 - the picture alone needs matplotlib

        plot(results, options.plot)


def measure_all(options: argparse.Namespace) -> list[Result]:
    """Run what is asked for, and write JSON after each measure, so that an interrupted run is
    not lost.
    """
    load_before = os.getloadavg()[0]
    print(f"load average before: {load_before:.2f}, cores: {os.cpu_count()}")
    results: list[Result] = []
    measures = chosen(options)
    names = {name for measure in measures for name in measure.databases}
    with places(options, names) as found:
        for place in found:
            for measure in measures:
                if place.name not in measure.databases:
                    continue
                if (result := measured(measure, place, options)) is None:
                    continue
                print_result(result)
                results.append(result)
                if options.json:
                    command = " ".join(["python tests/bench", *sys.argv[1:]])
                    write_json(results, options.json, command=command, load_before=load_before)
    print(f"\nload average after: {os.getloadavg()[0]:.2f}")
    return results


if __name__ == "__main__":
    main()
