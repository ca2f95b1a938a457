"""Workers of wool apart from whoever uses them: ``python wool_farm.py NAMESPACE WORKERS THRESHOLD``; they end with standard input.

Tells their process ids when they are ready, as one JSON list.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import wool

from rowlock.dispatch import TaskCountBackpressure

ROOT = Path(__file__).parents[2]
END_S_MAX = 30.0


@contextmanager
def farm(namespace: str, *, workers: int, threshold: int = 1) -> Iterator[list[int]]:
    """Give the process ids of so many workers, which are told of in LocalDiscovery of `namespace`."""
    command = [sys.executable, __file__, namespace, str(workers), str(threshold)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            try:
                process.wait(END_S_MAX)
            finally:
                process.kill()


async def main(namespace: str, workers: int, threshold: int) -> None:
    """Have workers until standard input ends."""
    made: list[wool.LocalWorker] = []

    def worker(*tags: str, **options: object) -> wool.LocalWorker:
        made.append(wool.LocalWorker(*tags, backpressure=TaskCountBackpressure(threshold), **options))
        return made[-1]

    async with wool.WorkerPool(spawn=workers, worker=worker, discovery=wool.LocalDiscovery(namespace)):
        print(json.dumps([each.metadata.pid for each in made]), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # workers find the handlers there
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
