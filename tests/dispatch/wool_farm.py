"""Workers of wool apart from whoever uses them: ``python wool_farm.py`` opens and closes farms
until standard input ends.

One such process is for all tests of a session, since most of what it does is to import. It reads a
line of JSON for each farm that opens (a name of its own, its namespace, how many workers, how many
tasks each takes) or closes (the name alone), and answers with the process ids of its workers.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import wool

from rowlock.dispatch import TaskCountBackpressure

ROOT = Path(__file__).parents[2]
END_S_MAX = 300.0


@contextmanager
def farm(namespace: str, *, workers: int, threshold: int = 1) -> Iterator[list[int]]:
    """Give the process ids of so many workers, which are told of in LocalDiscovery of
    `namespace`.
    """
    name = uuid.uuid4().hex
    pids = _ask(name, namespace, workers, threshold)
    try:
        yield pids
    finally:
        _ask(name)


def _ask(*what: object) -> list[int]:
    process = _farmer()
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps(what), file=process.stdin, flush=True)
    pids: list[int] = json.loads(process.stdout.readline())
    return pids


@cache
def _farmer() -> Popen[str]:
    process = Popen([sys.executable, __file__], stdin=PIPE, stdout=PIPE, text=True)
    atexit.register(_dismiss, process)
    return process


def _dismiss(process: Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_S_MAX)
    finally:
        process.kill()


class Farm:
    """Workers of one namespace, in a task of their own: wool ties a pool to the task that opened
    it.
    """

    def __init__(self, namespace: str, workers: int, threshold: int) -> None:
        self._may_close = asyncio.Event()
        self._pids: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._held = asyncio.create_task(self._hold(namespace, workers, threshold))

    async def pids(self) -> list[int]:
        """Return the process ids of the workers when all are there."""
        await asyncio.wait({self._pids, self._held}, return_when=asyncio.FIRST_COMPLETED)
        return await self._pids if self._pids.done() else await self._held

    async def close(self) -> list[int]:
        self._may_close.set()
        return await self._held

    async def _hold(self, namespace: str, workers: int, threshold: int) -> list[int]:
        made: list[Any] = []

        def worker(*tags: str, **options: Any) -> wool.LocalWorker:
            made.append(
                wool.LocalWorker(*tags, backpressure=TaskCountBackpressure(threshold), **options)
            )
            return made[-1]

        async with wool.WorkerPool(
            spawn=workers, worker=worker, discovery=wool.LocalDiscovery(namespace)
        ):
            pids = [each.metadata.pid for each in made]
            self._pids.set_result(pids)
            await self._may_close.wait()
        return pids


async def main() -> None:
    farms: dict[str, Farm] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *what = json.loads(line)
        if what:
            farms[name] = Farm(*what)
            print(json.dumps(await farms[name].pids()), flush=True)
        else:
            print(json.dumps(await farms.pop(name).close()), flush=True)
    for each in farms.values():
        await each.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # workers find the handlers there
    asyncio.run(main())
