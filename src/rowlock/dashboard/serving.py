"""The dashboard alone, on a port of its own, for one person: ``rowlock dashboard``.

The one idea: the path of its address begins with a key that is new each time. Who has it may look
and act, since that person can run the commands, too. The key is no cookie, since browsers send
cookies to each server of the host, on any port; a path is sent to its own server alone, and
the referrer policy keeps it out of requests to others.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from rowlock.dashboard.dashboard import Dashboard
from rowlock.dashboard.guarding import Viewer, ViewerAction
from rowlock.errors import AppError
from rowlock.insight.insight import Insight

KEY_BYTES: Final = 24
DRAIN_S_MAX: Final = 5  # how long the server waits for open streams when it ends, in seconds


class KeyedDashboard:
    """A dashboard below a path that begins with its `key`."""

    def __init__(self, insight: Insight, *, name: str, may_act: bool = True) -> None:
        self.key = secrets.token_urlsafe(KEY_BYTES)
        self._name, self._may_act = name, may_act
        self._dashboard = Dashboard(insight, authorize=self._authorize)

    async def _authorize(self, request: Request, action: ViewerAction) -> Viewer | None:
        has_key = request.scope.get("root_path") == f"/{self.key}"
        return Viewer(self._name) if has_key and (self._may_act or action.is_look) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Mount the dashboard below its key; other paths are refused."""
        if scope["type"] == "http":
            first = scope["path"].removeprefix("/").partition("/")[0]
            if hmac.compare_digest(first.encode(), self.key.encode()):
                scope["root_path"] = f"/{self.key}"
        await self._dashboard(scope, receive, send)


async def serve(app: KeyedDashboard, *, host: str, port: int, told: Callable[[str], None]) -> None:
    """Serve `app` until it is interrupted; `told` gets the address, with the key."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # its lines would have the key
        timeout_graceful_shutdown=DRAIN_S_MAX,
        server_header=False,
        lifespan="off",
    )
    # It listens before the address is printed: early clients wait.
    with listening(host, port) as bound:
        name = f"[{host}]" if ":" in host else host
        told(f"http://{name}:{bound.getsockname()[1]}/{app.key}/")
        await uvicorn.Server(config).serve([bound])


def listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise AppError(
            f"the dashboard cannot listen on {host}, port {port}: {error.strerror or error}; name"
            " another port or address: --port 0 takes a free one"
        ) from error
