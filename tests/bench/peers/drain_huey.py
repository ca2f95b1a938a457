"""huey drains tasks that do nothing: ``drain_huey.py FILE ROWS FSYNC`` prints rows per second,
in its own environment.
"""

from __future__ import annotations

import sys
import threading
import time

from huey import SqliteHuey


def drain(path: str, rows: int, *, fsync: bool) -> float:
    """Return rows per second from the start of one worker thread until the last task has run."""
    huey = SqliteHuey(filename=path, fsync=fsync, results=False)
    done, left = threading.Event(), [rows]

    @huey.task()
    def noop() -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    for _ in range(rows):
        noop()
    consumer = huey.create_consumer(workers=1, periodic=False)
    began = time.perf_counter()
    consumer.start()
    done.wait()
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    return rows / seconds


if __name__ == "__main__":
    print(drain(sys.argv[1], int(sys.argv[2]), fsync=sys.argv[3] == "fsync"))
