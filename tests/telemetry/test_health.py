"""The probes: a restart only where it helps, and traffic only where work is done."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rowlock import ConfigurationError, Fetcher, PipelineManager
from rowlock.telemetry.health import health_app
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, faults_of, hang, until
from ..pipelines.test_late_loops import stand_still

pytestmark = pytest.mark.either_database


async def asked(
    manager: PipelineManager, path: str, method: str = "GET", root: str = ""
) -> tuple[int, Any]:
    """Return status and answer of a request, as a server would make it."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("a probe has no body")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": root}
    await health_app(manager)(scope, receive, send)
    body = sent[1]["body"]
    return sent[0]["status"], json.loads(body) if body else None


@virtual_time
async def test_a_replica_is_ready_while_it_works(virtual_database: TemporaryDatabase) -> None:
    """Traffic would come before the start, or while it drains."""
    await add(virtual_database)
    manager = PipelineManager(virtual_database.session_factory, [VolumePipeline()])
    assert await asked(manager, "/readyz") == (
        503,
        {"ready": False, "why": ["VolumePipeline is not started"]},
    )
    async with manager:
        await asyncio.sleep(1)
        assert await asked(manager, "/readyz") == (200, {"ready": True, "why": []})
        assert await asked(manager, "/health/readyz", root="/health") == (
            200,
            {"ready": True, "why": []},
        )
        manager.shutdown()
        assert await asked(manager, "/readyz") == (
            503,
            {"ready": False, "why": ["VolumePipeline is draining"]},
        )
    assert (await asked(manager, "/readyz"))[1]["why"] == ["VolumePipeline has stopped"]
    assert (await asked(manager, "/healthz"))[0] == 200
    nothing = PipelineManager(virtual_database.session_factory)
    assert (await asked(nothing, "/readyz"))[1]["why"] == ["no pipeline is registered"]


@virtual_time
@pytest.mark.parametrize("loop", ["fetcher", "heartbeater", "lease watch"])
async def test_each_loop_that_stands_still_is_named(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """A replica that claims or renews nothing any more would be kept for ever."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        if loop == "lease watch":
            monkeypatch.setattr("rowlock.pipelines.heartbeater.sleep", stand_still)
        elif loop == "heartbeater":
            monkeypatch.setattr(pipeline.run.heartbeater, "beat_once", stand_still)
        await until(lambda: len(manager.items()) == 1)
        if loop == "fetcher":
            monkeypatch.setattr(Fetcher, "_fetch", stand_still)
            pipeline.hint()
        await until(lambda: manager.health().pipelines[0].late_s[loop] > 6)
        status, answer = await asked(manager, "/readyz")
        assert status == 503
        assert any(text.startswith(f"VolumePipeline: {loop} is ") for text in answer["why"])
        assert (await asked(manager, "/healthz"))[0] == 200
        await until(lambda: manager.health().pipelines[0].late_s[loop] > 61)
        status, answer = await asked(manager, "/healthz")
        assert (status, answer["live"]) == (503, False)
        await manager.drain(0)


@virtual_time
async def test_an_outage_restarts_nothing(virtual_database: TemporaryDatabase) -> None:
    """All replicas would be restarted because the database is away."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(manager.items()) == 1)
        with faults_of(virtual_database.engine) as faults:
            faults.fail(ConnectionError("the password is hunter2"))
            await until(lambda: pipeline.statistics().counters["fetches_failed"] >= 2)
            for _ in range(40):
                await asyncio.sleep(5)
                assert await asked(manager, "/healthz") == (200, {"live": True, "why": []})
            status, answer = await asked(manager, "/readyz")
            assert status == 503
            assert any("fetches in a row failed" in text for text in answer["why"])
            assert "hunter2" not in str(answer)
            faults.heal()
        await manager.drain(0)


async def test_what_is_no_probe_is_told_so(database: TemporaryDatabase) -> None:
    """A probe with a typing error in its path would pass for one that is well."""
    manager = PipelineManager(database.session_factory)
    assert (await asked(manager, "/health"))[0] == 404
    assert (await asked(manager, "/healthz", method="POST"))[0] == 405
    assert await asked(manager, "/healthz", method="HEAD") == (200, None)
    with pytest.raises(ConfigurationError, match="managers"):
        health_app()


async def test_it_runs_by_itself(database: TemporaryDatabase) -> None:
    """A server that hosts nothing else would not start."""
    app, sent = health_app(PipelineManager(database.session_factory)), list[str]()
    incoming = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(incoming)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
