"""Runs the references in their large form: ``python tests/streams/references --events 200000``.

Each has a database of its own: a SQLite file, or one of a PostgreSQL server with its own settings
for writing to the disk. The rate is that of the flow, from the first step to the last one; with
``--kill`` it has the time in which the leases of the killed process expire.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rowlock.testing import PostgresqlServer
from tests.streams.references.declared import DECLARED
from tests.streams.references.large import Answer, Layout, run

DATABASES = ("sqlite", "postgresql")
HEADS = (
    *("query", "database", "shards", "events read", "steps", "results", "missing", "surplus"),
    *("killed with", "seconds", "events/s"),
)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python tests/streams/references", description=__doc__)
    parser.add_argument("--query", nargs="*", choices=DECLARED, default=list(DECLARED))
    parser.add_argument("--database", nargs="*", choices=DATABASES, default=list(DATABASES))
    parser.add_argument("--shards", nargs="*", type=int, default=[16])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument(
        "--checkpoint", type=int, default=1, help="states are written each ... step"
    )
    parser.add_argument("--step-rows", type=int, default=5_000, help="most rows of a step")
    parser.add_argument("--kill", action="store_true", help="kill one process half-way, with -9")
    return parser.parse_args()


@contextmanager
def server_of(databases: list[str]) -> Iterator[URL | None]:
    """Run a PostgreSQL server if one is needed."""
    if "postgresql" not in databases:
        yield None
        return
    # The path of a socket has to be short.
    directory = Path(tempfile.mkdtemp(prefix="references-", dir="/tmp"))
    server = PostgresqlServer(directory, durable=True)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def new_database(server: URL, name: str) -> str:
    """Create a database; return its URL."""
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f'CREATE DATABASE "{name}"'))
    await engine.dispose()
    return server.set(database=name).render_as_string(hide_password=False)


def line(values: tuple[object, ...]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(map(str, values))} |"


def shown(place: tuple[str, str, int], answer: Answer) -> str:
    """Return the line of a run."""
    killed = "none" if answer.killed is None else f"{answer.killed} shards"
    counts = (answer.rows, answer.steps, answer.results, answer.missing, answer.surplus)
    rate = answer.rows / answer.seconds
    return line(
        (*place, *map("{:,}".format, counts), killed, f"{answer.seconds:.1f}", f"{rate:,.0f}")
    )


async def main(options: argparse.Namespace, server: URL | None, folder: Path) -> bool:
    """Run all that is asked for; return whether every answer is right."""
    task = asyncio.current_task()
    assert task is not None
    # A run that is ended stops its server, too.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    is_right = True
    print(line(HEADS), line(("---",) * len(HEADS)), sep="\n", flush=True)
    places = [
        (query, database, shards)
        for database in options.database
        for query in options.query
        for shards in options.shards
    ]
    for number, (query, database, shards) in enumerate(places):
        if database == "sqlite":
            url = f"sqlite+aiosqlite:///{folder / f'{number}.db'}"
        else:
            assert server is not None
            url = await new_database(server, f"reference_{number}")
        layout = Layout(shards, options.checkpoint, options.step_rows)
        counts = {"events": options.events, "processes": options.processes}
        answer = await run(url, query, layout, kill=options.kill, **counts)
        print(shown((query, database, shards), answer), flush=True)
        is_right = is_right and not answer.missing and not answer.surplus
    return is_right


if __name__ == "__main__":
    given = arguments()
    with tempfile.TemporaryDirectory() as temporary, server_of(given.database) as at:
        is_right = asyncio.run(main(given, at, Path(temporary)))
    sys.exit(0 if is_right else 1)
