"""A host that copies the library leaves out a wing or a window by deleting its folder
(docs/design/house.md): the rest imports, and works on a row.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

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
# The packages of others take most of the time: they are imported once, and each copy of the library
# is imported in a fork of that process.
STARTS = """
import asyncio, gc, importlib, os, pkgutil, sys

for name in (
    "aiosqlite alembic.autogenerate anyio asyncpg hypothesis jinja2 mcp.server uvicorn wool"
    " opentelemetry.metrics prometheus_client pydantic pytest rich.console rich.syntax"
    " sse_starlette starlette.applications textual.app"
).split():
    importlib.import_module(name)
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

gc.freeze()
for folder in sys.argv[1:]:
    if not (child := os.fork()):
        break
    print(folder, os.waitpid(child, 0)[1], flush=True)
else:
    sys.exit()

sys.path.insert(0, folder)
import rowlock

assert rowlock.__path__ == [folder + "/rowlock"]
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
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/jobs.db")
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


def test_the_rest_works_without(tmp_path: Path) -> None:
    """Who wants less would get an import that fails, in a part that he keeps."""
    copies = {part: tmp_path / part.replace("/", ".") for part in BESIDES}
    for part, copy in copies.items():
        # With its bytecode, which is good for as long as the times of the files are the same.
        shutil.copytree(ROOT / "src/rowlock", copy / "rowlock")
        for name in (part, *BESIDES[part]):
            gone = copy / "rowlock" / name
            if gone.is_dir():
                shutil.rmtree(gone)
            else:
                gone.unlink()
    run = subprocess.run(
        [sys.executable, "-c", STARTS, *map(str, copies.values())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [f"{copy} 0" for copy in copies.values()], run.stderr
