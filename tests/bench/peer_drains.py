"""The drain of other libraries beside our own, each installed into a virtual environment of its
own.

Their jobs do nothing, as ours do, with the settings that their documentation names. A peer gives
other promises: the figures say what those cost, not which library to choose.
"""

from __future__ import annotations

import asyncio
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from drain import drain_once
from limits import dsn
from measure import Figures, Place, Scale, beside
from sqlalchemy import make_url

SCRIPTS = Path(__file__).with_name("peers")
REQUIREMENTS = {
    "chancy": ("chancy", "psycopg[binary]"),
    "huey": ("huey",),
    "pgqueuer": ("pgqueuer", "asyncpg"),
    "procrastinate": ("procrastinate", "psycopg[binary]"),
}
"""What is installed for each; of drivers the fastest, as their documentation advises."""
_folders: list[tempfile.TemporaryDirectory[str]] = []


async def pgqueuer(place: Place, scale: Scale, *, batch: int, workers: int) -> Figures:
    return await _against(
        place, scale, workers=workers, command=("pgqueuer", dsn(make_url(place.url)), str(batch))
    )


async def procrastinate(place: Place, scale: Scale, *, concurrency: int) -> Figures:
    """Return our drain with 100 workers and that of procrastinate, on PostgreSQL."""
    return await _against(
        place, scale, command=("procrastinate", dsn(make_url(place.url)), str(concurrency))
    )


async def chancy(place: Place, scale: Scale, *, concurrency: int) -> Figures:
    """Return our drain with 100 workers and that of chancy, on PostgreSQL."""
    return await _against(
        place, scale, command=("chancy", dsn(make_url(place.url)), str(concurrency))
    )


async def huey(place: Place, scale: Scale, *, fsync: bool) -> Figures:
    """Return our drain and that of huey with one worker, on SQLite."""
    with _file() as path:
        return await _against(
            place, scale, command=("huey", str(path), "fsync" if fsync else "no fsync")
        )


async def _against(
    place: Place, scale: Scale, *, command: tuple[str, str, str], workers: int = 100
) -> Figures:
    peer, where, setting = command
    python = await asyncio.to_thread(_python_of, peer)

    async def theirs() -> Figures:
        script = SCRIPTS / f"drain_{peer}.py"
        printed = await _run(str(python), str(script), where, str(scale.rows), setting)
        return {"rows/s": float(printed.split()[-1])}

    async def ours() -> Figures:
        return await drain_once(place, rows=scale.rows, workers=workers)

    other, own = await beside(theirs, ours, limit_first=scale.limit_first)
    ratio = own["rows/s"] / other["rows/s"]
    return {"rows/s": own["rows/s"], f"{peer} rows/s": other["rows/s"], f"× {peer}": ratio}


@cache
def _python_of(peer: str) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="rowlock-bench-peer-")
    _folders.append(folder)  # until this process ends
    venv.create(folder.name, with_pip=True)
    python = Path(folder.name) / "bin" / "python"
    asyncio.run(_run(str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]))
    return python


async def _run(*command: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        printed, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise RuntimeError(
            f"{command[-4:]} ended with {process.returncode}: {complaints.decode()[-500:]}"
        )
    return printed.decode()


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rowlock-bench-huey-") as folder:
        yield Path(folder) / "huey.db"
