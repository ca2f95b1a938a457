"""A service with an HTTP interface runs its pipelines in its own process.

The one idea: the pipelines start and stop with the application, in its lifespan. A request handler
only commits and hints; the client gets its answer at once and asks again later.

Run it: ``python examples/03_inside_fastapi.py`` (needs ``pip install fastapi httpx``). It talks to
itself within the process, ends by itself and leaves nothing behind. A real service would give
``create_app(...)`` to uvicorn.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, PipelineManager, hint_after_commit

POLL_S = 0.02
WAIT_S_MAX = 20.0


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, Base):
    """A volume as the host knows it."""

    __tablename__ = "volumes"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    size_gb: Mapped[int]
    status: Mapped[str] = mapped_column(default="submitted")
    disk_id: Mapped[str | None]


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        """Create the disk."""
        await asyncio.sleep(0.1)  # the cloud, slow and outside of the database
        return Apply({"status": "active", "disk_id": f"disk-{item.id.hex[:8]}"})


class NewVolume(BaseModel):
    """What a client sends."""

    size_gb: Annotated[int, Field(ge=1, le=1000)]


class VolumeState(BaseModel, from_attributes=True):
    """What a client gets."""

    id: uuid.UUID
    status: str
    disk_id: str | None


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Give a handler its session; the handler commits."""
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]


async def create_volume(body: NewVolume, session: Session) -> VolumeState:
    """Store the request and answer; the hint goes out with the commit, and only if there is one."""
    volume = Volume(size_gb=body.size_gb)
    session.add(volume)
    hint_after_commit(session, Volume)
    await session.commit()
    return VolumeState.model_validate(volume)


async def read_volume(volume_id: uuid.UUID, session: Session) -> VolumeState:
    """Tell how far the volume is."""
    volume = await session.get(Volume, volume_id)
    if volume is None:
        raise HTTPException(404)
    return VolumeState.model_validate(volume)


async def health(request: Request, response: Response) -> dict[str, Any]:
    """Answer a readiness probe: 503 while a loop is dead or the database does not answer."""
    report = request.app.state.manager.health()
    response.status_code = 200 if report.healthy else 503
    return {"healthy": report.healthy, **asdict(report)}


def create_app(database_url: str) -> FastAPI:
    """Build the application; it starts its pipelines when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = create_async_engine(database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        async with PipelineManager(app.state.sessions, [VolumePipeline()]) as app.state.manager:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.post("/volumes", status_code=202)(create_volume)
    app.get("/volumes/{volume_id}")(read_volume)
    app.get("/health")(health)
    return app


async def read_until_active(client: AsyncClient, path: str) -> dict[str, Any]:
    """Ask until the volume is active, as a patient client does."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            volume: dict[str, Any] = (await client.get(path)).raise_for_status().json()
            if volume["status"] == "active":
                return volume
            await asyncio.sleep(POLL_S)


async def main(folder: Path) -> None:
    """Start the service and be its client."""
    app = create_app(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    transport = ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        answer = await client.post("/volumes", json={"size_gb": 10})
        print(f"POST /volumes: {answer.status_code}, {answer.json()['status']}")
        volume = await read_until_active(client, f"/volumes/{answer.json()['id']}")
        print(f"GET /volumes/...: {volume['status']}, {volume['disk_id']}")
        answer = await client.get("/health")
        print(
            f"GET /health: {answer.status_code},"
            f" {[one['pipeline'] for one in answer.json()['pipelines']]}"
        )
    print(f"after the shutdown: {app.state.manager.health().pipelines[0].state}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
