"""A service without a web framework shows its metrics and its health.

The one idea: metrics may be read in any thread, so the server of prometheus-client will do; and the
probes are an ASGI app, so any ASGI server will.

Run it: ``python examples/19_metrics_in_asyncio.py`` (needs ``pip install uvicorn httpx
prometheus-client``). It talks to itself over the loopback, ends by itself and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from httpx import AsyncClient
from prometheus_client import start_http_server
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from uvicorn import Config, Server
from watching.volumes import TABLES, Base, Volume, VolumePipeline, look_around

from rowlock import PipelineManager
from rowlock.insight import Observer
from rowlock.telemetry.health import health_app
from rowlock.telemetry.prometheus import register

HOST = "127.0.0.1"


@asynccontextmanager
async def probes(manager: PipelineManager) -> AsyncIterator[int]:
    """Serve the probes, and give the port."""
    app: Any = health_app(manager)
    server = Server(Config(app, host=HOST, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@asynccontextmanager
async def metrics(observer: Observer) -> AsyncIterator[int]:
    """Serve the metrics in a thread, and give the port."""
    register(observer)
    server, thread = start_http_server(0, HOST)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


async def main(folder: Path) -> None:
    """Run the service, and scrape and probe it."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)  # a real host migrates
    async with sessions.begin() as session:
        session.add(Volume())
    manager = PipelineManager(sessions, [VolumePipeline()], gates=[TABLES.pause_gate])
    async with (
        Observer(manager) as observer,  # its tables are those of the gate; it ends last
        manager,
        probes(manager) as probe_port,
        metrics(observer) as metrics_port,
        AsyncClient() as client,
    ):

        async def get(url: str) -> tuple[int, str]:
            answer = await client.get(url)
            return answer.status_code, answer.text

        of_probes = {name: f"http://{HOST}:{probe_port}/{name}" for name in ("healthz", "readyz")}
        await look_around(get, {"metrics": f"http://{HOST}:{metrics_port}/metrics"} | of_probes)
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
