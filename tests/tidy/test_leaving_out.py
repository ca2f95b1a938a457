"""A host that copies the library leaves out a wing or a window by deleting its folder
(docs/design/house.md): the rest imports, and works on a row.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .reading import ROOT

ROOFS = ("cli", "dashboard", "telemetry", "assistants", "__main__.py")
BESIDES = {
    "dispatch": (),
    "graph": (),
    "streams": ("testing/streams",),
    "migrations/autogenerate.py": (),
    "dashboard": (),
    "assistants": (),
    "telemetry": (),
    "demo": (),
    "testing": ("demo",),
    "insight": ROOFS,
    "migrations": ("dispatch", "streams", "testing", "demo", "insight", *ROOFS),
}
"""What goes with the folder of each part."""
STARTS = """
import asyncio, importlib, pkgutil, sys
import rowlock
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

for module in pkgutil.walk_packages(rowlock.__path__, "rowlock."):
    # A module of a child process takes over its standard streams.
    if not module.name.endswith(("__main__", ".child", "wool_worker", "_line")):
        importlib.import_module(module.name)

class Base(DeclarativeBase): pass

class Job(rowlock.LockColumns, Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")

done = asyncio.Event()

class Jobs(rowlock.Pipeline[Job]):
    model = Job
    def ready(self): return Job.status == "new"
    async def process(self, item): return rowlock.Apply({"status": "done"})

async def main():
    engine = create_async_engine("sqlite+aiosqlite:///" + sys.argv[1])
    sessions = async_sessionmaker(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions.begin() as session:
        session.add(Job())
    applied = rowlock.events.ItemApplied
    rowlock.events.subscribe(lambda event: isinstance(event, applied) and done.set())
    async with rowlock.PipelineManager(sessions, [Jobs()]):
        await done.wait()
    await engine.dispose()

asyncio.run(main())
"""


@pytest.mark.parametrize("part", BESIDES)
def test_the_rest_works_without(part: str, tmp_path: Path) -> None:
    """Who wants less would get an import that fails, in a part that he keeps."""
    package = tmp_path / "rowlock"
    # With its bytecode, which is good for as long as the times of the files are the same.
    shutil.copytree(ROOT / "src/rowlock", package)
    for name in (part, *BESIDES[part]):
        gone = package / name
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink()
    run = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path / "jobs.db")],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
