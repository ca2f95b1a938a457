"""Two probes as one small ASGI app: ``/healthz`` asks whether a restart would help, ``/readyz``
whether this replica works.

The one idea: an outage of the database must not restart a replica. A loop is late only by its own
plan, whose statements are bounded, so that no outage makes one late; and only that ends liveness.

Not here: error texts. A probe is often open to everybody.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, TypeAlias

from rowlock import PipelineHealth, PipelineManager
from rowlock.errors import ConfigurationError

DEAD_AFTER_S = 60.0
"""A loop that is later than this, in seconds, does not come back by itself: restart the process."""
LATE_S_MAX = 5.0  # how late a loop may be in a replica that is ready, in seconds

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_STATES = {"new": "is not started", "stopping": "is draining", "stopped": "has stopped"}


def _late(health: PipelineHealth, *, longer_than_s: float) -> Iterator[str]:
    for loop, late_s in health.late_s.items():
        if late_s > longer_than_s:
            yield f"{health.pipeline}: {loop} is {late_s:.0f} s late"


def _unready(health: PipelineHealth) -> Iterator[str]:
    name = health.pipeline
    if health.state != "running":
        yield f"{name} {_STATES.get(health.state, health.state)}"
        return
    for loop, is_alive in health.loops_alive.items():
        if not is_alive:
            yield f"{name}: {loop} is not running"
    if health.fetch_failures:
        yield f"{name}: {health.fetch_failures} fetches in a row failed"
    if health.renewal_failures:
        yield f"{name}: {health.renewal_failures} renewals in a row failed"
    yield from _late(health, longer_than_s=LATE_S_MAX)


def health_app(*managers: PipelineManager) -> App:
    """Return an ASGI app that answers ``GET /healthz`` and ``GET /readyz`` for all `managers` of
    this process, by itself or mounted anywhere.

    Raises:
        ConfigurationError: there is no manager.
    """
    if not managers or not all(isinstance(one, PipelineManager) for one in managers):
        raise ConfigurationError("health_app takes the managers of this process")

    def pipelines() -> list[PipelineHealth]:
        return [one for manager in managers for one in manager.health().pipelines]

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status, answer = _answer(scope, pipelines)
            await _respond(send, status, answer, with_body=scope["method"] != "HEAD")
        else:
            await answer_other(scope, receive, send)

    return app


def _answer(
    scope: Message, pipelines: Callable[[], list[PipelineHealth]]
) -> tuple[int, dict[str, object]]:
    # Frameworks differ in whether the path of a mounted app has that of the mount in front.
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")).rstrip("/")
    if path not in {"/healthz", "/readyz"}:
        return 404, {"error": "there are /healthz and /readyz"}
    if scope["method"] not in {"GET", "HEAD"}:
        return 405, {"error": "use GET"}
    known = pipelines()
    if path == "/healthz":
        name = "live"
        why = [text for one in known for text in _late(one, longer_than_s=DEAD_AFTER_S)]
    else:
        name, why = "ready", [text for one in known for text in _unready(one)]
        why = why if known else ["no pipeline is registered"]
    return (503 if why else 200), {name: not why, "why": why}


async def _respond(send: Send, status: int, answer: object, *, with_body: bool) -> None:
    body = json.dumps(answer).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"allow", b"GET, HEAD"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body if with_body else b""})


async def answer_other(scope: Message, receive: Receive, send: Send) -> None:
    """Answer what is no request: the lifespan is followed, and a websocket closed."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
    name = ""
    while scope["type"] == "lifespan" and name != "lifespan.shutdown":
        name = (await receive())["type"]
        await send({"type": f"{name}.complete"})
