"""The service: takes requests for pictures up to a ceiling, has processes make them, and tells how
far they are.

The one idea: a request is a row and nothing else. Whoever asks for what is in hand already gets
that row; whoever comes when too much is in hand is told when to come back; and what a dead replica
leaves, the next one does without being asked.

Run it: ``uvicorn --app-dir examples --factory rendering.service:create_app``, with
``RENDERS_DATABASE`` (a URL) and ``RENDERS_FOLDER`` in the environment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.dispatch import AdmissionRejected, DispatchPipeline, Draining, ProcessEngine

from .picture import render
from .tables import Base, Render

WORKERS = 2
MAX_ACTIVE = 4
"""At most so many pictures are waited for or being made."""
GRACE_S = 60.0
"""How long pictures that are being made may take to be done when the service is to end."""


class View(BaseModel):
    """What a client asks for."""

    x: Annotated[float, Field(ge=-2, le=2)]
    y: Annotated[float, Field(ge=-2, le=2)]
    zoom: Annotated[float, Field(ge=1, le=1_000_000)] = 1.0
    width: Annotated[int, Field(ge=16, le=2_000)] = 160

    @property
    def key(self) -> str:
        """What the work is about: two requests with one key are one picture."""
        # Nought is added, since there are two of it: 0.0 and -0.0.
        return f"{self.x + 0.0!r}:{self.y + 0.0!r}:{self.zoom!r}:{self.width}"


class RenderState(BaseModel):
    """What a client gets."""

    id: uuid.UUID
    status: str
    progress: str | None
    stages: list[str]
    url: str | None
    error: str | None


def state_of(row: Render) -> RenderState:
    """Tell how far a picture is."""
    return RenderState(
        id=row.id,
        status=row.status,
        progress=row.progress,
        stages=list(row.stages),
        url=row.url,
        error=row.error,
    )


async def create_render(view: View, request: Request) -> RenderState:
    """Take a request, or attach to the one that is in hand for the same view."""
    state = request.app.state
    async with state.sessions.begin() as session:
        row, _ = await state.renders.submit(session, dedup_key=view.key, **view.model_dump())
    state.renders.hint()
    return state_of(row)


async def read_render(render_id: uuid.UUID, request: Request) -> RenderState:
    """Tell how far a picture is; this is never refused, however much is in hand."""
    async with request.app.state.sessions() as session:
        row = await session.get(Render, render_id)
    if row is None:
        raise HTTPException(404)
    return state_of(row)


async def say_when_to_come_back(request: Request, error: Exception) -> JSONResponse:
    """Answer 429 when too much is in hand, and 503 when this replica is about to end."""
    assert isinstance(error, AdmissionRejected | Draining)
    status = 429 if isinstance(error, AdmissionRejected) else 503
    return JSONResponse(
        {"detail": error.message}, status, headers={"Retry-After": str(error.retry_after)}
    )


@asynccontextmanager
async def drained_before_the_server_ends(manager: PipelineManager) -> AsyncIterator[None]:
    """On SIGTERM, drain first and let the server end then.

    A server that is told to end closes its door before it ends its lifespan: nobody would hear the
    503.
    """
    loop, drains = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    of_the_server = signal.getsignal(signal.SIGTERM)

    async def drain() -> None:
        try:
            await manager.drain(GRACE_S)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, of_the_server)
            signal.raise_signal(signal.SIGTERM)

    # not the main thread: a test's client, say, which sends no signals
    with suppress(RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGTERM, lambda: drains.add(asyncio.create_task(drain())))
    try:
        yield
    finally:
        with suppress(RuntimeError, ValueError):
            if loop.remove_signal_handler(signal.SIGTERM):
                signal.signal(signal.SIGTERM, of_the_server)


def pipeline_of(folder: Path) -> DispatchPipeline[Render]:
    """Return the pipeline. Pictures and the folders of attempts lie in one place, so that files
    can be moved.
    """
    pictures, scratch = folder / "pictures", folder / "scratch"
    # What a replica that was killed has left behind; there is one for each folder.
    shutil.rmtree(scratch, ignore_errors=True)
    for each in (pictures, scratch):
        each.mkdir(parents=True, exist_ok=True)
    return DispatchPipeline(
        Render,
        handler=partial(render, pictures=pictures),
        engine=ProcessEngine(WORKERS),
        scratch_root=scratch,
        max_active=MAX_ACTIVE,
        # Short, so that this example is; a real service leaves these out.
        retry_interval=1,
        heartbeat=1,
        heartbeat_limit=20,  # so long a busy machine may keep a process from speaking
        lock_timeout=6,
        heartbeat_trigger=3,
        fetch_delays=(0.1, 0.2, 0.5),
    )


def create_app() -> FastAPI:
    """Build the application; it starts its pipeline when it starts."""
    folder, database_url = Path(os.environ["RENDERS_FOLDER"]), os.environ["RENDERS_DATABASE"]
    renders = pipeline_of(folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = create_async_engine(database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        app.state.renders = renders
        async with (
            PipelineManager(app.state.sessions, [renders]) as manager,
            drained_before_the_server_ends(manager),
        ):
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.post("/renders", status_code=202)(create_render)
    app.get("/renders/{render_id}")(read_render)
    app.mount("/pictures", StaticFiles(directory=folder / "pictures"))
    for refusal in (AdmissionRejected, Draining):
        app.add_exception_handler(refusal, say_when_to_come_back)
    return app
