"""Late commits on a real server: ``python tests/streams/late_commits --seconds 60 --writers 24``.

Writers of many kinds add rows that become visible in another order than they got their positions
in. The flow must read each of them once; beside it read those who lack a guard.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rowlock.clock import monotonic
from rowlock.testing import PostgresqlServer
from tests.databases import postgresql_database
from tests.streams.late_commits.run import Ran, run

SHORT_S = 0.02
"""How long nearly all transactions linger at most, each time they do."""
LONG_S = 1.0
LONG = 0.02
"""The part of them that linger for up to `LONG_S`."""
LOOKS_EVERY_S = 0.02


def main() -> int:
    """Run once, and print what was written and read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long rows are added")
    parser.add_argument("--writers", type=int, default=24, help="of all kinds in turn")
    parser.add_argument("--seed", type=int, default=1, help="of what writers draw")
    options = parser.parse_args()
    # Not in the folder for temporary files: its path may be too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="rowlock-late-", dir="/tmp"))
    server = PostgresqlServer(folder)
    try:
        ran = asyncio.run(run_for(server, options))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(ran)
    return 0 if ran.is_right else 1


async def run_for(server: PostgresqlServer, options: argparse.Namespace) -> Ran:
    """Run in a database of its own."""
    async with postgresql_database(server.start()) as database:
        until = monotonic() + options.seconds
        return await run(
            database,
            writers=options.writers,
            linger=linger,
            goes_on=lambda _done: monotonic() < until,
            rest=lambda: asyncio.sleep(LOOKS_EVERY_S),
            seed=options.seed,
        )


async def linger(rng: Random) -> None:
    """Leave a transaction open, sometimes for long."""
    await asyncio.sleep(rng.random() * (LONG_S if rng.random() < LONG else SHORT_S))


if __name__ == "__main__":
    sys.exit(main())
