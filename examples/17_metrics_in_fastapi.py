"""A FastAPI service shows its metrics and its health.

The one idea: the observer lives as long as the manager, in the lifespan. Metrics are read from what
the process counts anyway, so a scrape runs no SQL.

Run it: ``python examples/17_metrics_in_fastapi.py`` (needs ``pip install fastapi httpx
prometheus-client``). It talks to itself within the process, ends by itself and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Response
from httpx import ASGITransport, AsyncClient
from prometheus_client import generate_latest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from watching.volumes import TABLES, Base, Volume, VolumePipeline, look_around

from rowlock import PipelineManager
from rowlock.insight import Observer
from rowlock.telemetry.health import health_app
from rowlock.telemetry.prometheus import CONTENT_TYPE, exposition

PATHS = {"metrics": "/metrics", "healthz": "/health/healthz", "readyz": "/health/readyz"}


def create_app(database_url: str) -> FastAPI:
    """Build the application; it starts its pipelines when it starts."""
    engine = create_async_engine(database_url)
    sessions = async_sessionmaker(engine)
    manager = PipelineManager(sessions, [VolumePipeline()], gates=[TABLES.pause_gate])
    observer = Observer(manager)  # its tables are those of the gate

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        async with sessions.begin() as session:
            session.add(Volume())
        async with observer, manager:  # the observer ends last
            yield
        await engine.dispose()

    async def metrics() -> Response:
        """Answer Prometheus: the metrics of other libraries, and those of rowlock."""
        return Response(generate_latest() + exposition(observer), media_type=CONTENT_TYPE)

    app = FastAPI(lifespan=lifespan)
    app.get("/metrics")(metrics)
    app.mount("/health", health_app(manager))
    return app


async def main(folder: Path) -> None:
    """Start the service, and scrape and probe it."""
    app = create_app(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=ASGITransport(app), base_url="http://service") as client,
    ):

        async def get(path: str) -> tuple[int, str]:
            answer = await client.get(path)
            return answer.status_code, answer.text

        await look_around(get, PATHS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
