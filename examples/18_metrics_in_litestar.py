"""A Litestar service with advanced-alchemy shows its metrics and its health.

The one idea: the engine is that of advanced-alchemy's configuration, so that pipelines and request
handlers share its connections.

Run it: ``python examples/18_metrics_in_litestar.py`` (needs ``pip install litestar advanced-alchemy
httpx prometheus-client``). It talks to itself within the process, ends by itself and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some releases of theirs use what others call deprecated
    from advanced_alchemy.extensions.litestar import SQLAlchemyAsyncConfig, SQLAlchemyPlugin
    from litestar import Litestar, Response, asgi, get
    from litestar.testing import AsyncTestClient
from prometheus_client import generate_latest
from sqlalchemy.ext.asyncio import async_sessionmaker
from watching.volumes import TABLES, Base, Volume, VolumePipeline, look_around

from rowlock import PipelineManager
from rowlock.insight import Observer
from rowlock.telemetry.health import health_app
from rowlock.telemetry.prometheus import CONTENT_TYPE, exposition

PATHS = {"metrics": "/metrics", "healthz": "/health/healthz", "readyz": "/health/readyz"}


def create_app(database_url: str) -> Litestar:
    """Build the application; it starts its pipelines when it starts."""
    config = SQLAlchemyAsyncConfig(
        connection_string=database_url,
        metadata=Base.metadata,
        create_all=False,
    )
    sessions = async_sessionmaker(config.get_engine())
    manager = PipelineManager(sessions, [VolumePipeline()], gates=[TABLES.pause_gate])
    observer = Observer(manager)  # its tables are those of the gate
    probes: Any = health_app(manager)

    @asynccontextmanager
    async def pipelines(app: Litestar) -> AsyncIterator[None]:
        async with config.get_engine().begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        async with sessions() as session:
            session.add(Volume())
            await session.commit()
        async with observer, manager:  # the observer ends last
            yield
        await config.get_engine().dispose()

    @get("/metrics")
    async def metrics() -> Response[bytes]:
        """Answer Prometheus: the metrics of other libraries, and those of rowlock."""
        return Response(generate_latest() + exposition(observer), media_type=CONTENT_TYPE)

    return Litestar(
        [metrics, asgi("/health", is_mount=True, copy_scope=True)(probes)],
        plugins=[SQLAlchemyPlugin(config=config)],
        lifespan=[pipelines],
        logging_config=None,
    )


async def main(folder: Path) -> None:
    """Start the service, and scrape and probe it."""
    app = create_app(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    async with AsyncTestClient(app) as client:

        async def ask(path: str) -> tuple[int, str]:
            answer = await client.get(path)
            return answer.status_code, answer.text

        await look_around(ask, PATHS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
