"""Chaos on a real server: ``python tests/chaos --minutes 10 --seed 7 --latency-ms 25``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos.run import run
from tests.chaos.server import own_server


def main() -> int:
    """Run once, and print what was done and found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long the faults go on")
    parser.add_argument("--seed", type=int, default=1, help="of the monkey")
    parser.add_argument(
        "--latency-ms",
        type=float,
        default=0,
        help="what each round trip to the server takes besides",
    )
    parser.add_argument(
        "--driver", choices=("asyncpg", "psycopg"), default="asyncpg", help="of the replicas"
    )
    options = parser.parse_args()
    began = time.monotonic()
    with own_server() as server:
        ran = asyncio.run(
            run(
                options.seed,
                seconds=options.minutes * 60,
                server=server,
                latency_s=options.latency_ms / 1000,
                driver=options.driver,
            )
        )
    print(ran)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if ran.verdict.wrongs or ran.missed else 0


if __name__ == "__main__":
    sys.exit(main())
