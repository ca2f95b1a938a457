"""`Dashboard`: the ASGI app, and the way of a request through it; and the dashboard alone, on a
port of its own, for one person: ``rowlock dashboard``.

The one idea: everything is decided in one place and in one order. A request is authorized before
anything is asked, each answer has the same headers, and whatever fails is a page with a sentence.

The address of the dashboard alone begins with a key that is new each time. Who has it may look and
act, since that person can run the commands, too. The key is no cookie, since browsers send cookies
to each server of the host, on any port; a path is sent to its own server alone, and the referrer
policy keeps it out of requests to others.

Not here: a lifespan. A mounted app gets none, and this one needs none: nothing is made before the
first request, so a process may fork behind the import.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from rowlock import PipelineManager
from rowlock.dashboard import pages
from rowlock.dashboard.guarding import (
    LOOK,
    NOT_ALLOWED,
    Authorize,
    Gatekeeper,
    Viewer,
    ViewerAction,
    made_within,
    refusal_of,
    secured,
)
from rowlock.dashboard.pages import Answer, Handler, act
from rowlock.dashboard.visits import (
    LiveStreams,
    PageAddresses,
    PageVisit,
    RecentAnswers,
    ShownWings,
    render,
)
from rowlock.errors import AppError, ConfigurationError, describe
from rowlock.insight.insight import Insight
from rowlock.insight.observer import Observer
from rowlock.insight.steering import Act, audit_refusal
from rowlock.logs import get_logger

if TYPE_CHECKING:
    # A wing may have been left out.
    from rowlock.graph import StandingGraph
    from rowlock.streams import Streams


KINDS: Final = {
    "style.css": "text/css",
    "dashboard.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@lru_cache
def static_file(name: str) -> Response:
    content = (files("rowlock.dashboard") / "static" / name).read_bytes()
    headers = {"cache-control": "public, max-age=3600"}
    return Response(content, media_type=KINDS[name], headers=headers)


logger = get_logger(__name__)

Source: TypeAlias = PipelineManager | Observer | Insight
PAGE_S_MAX: Final = 9.0
"""Longest time for a page, in seconds; its questions have ended a second before."""


ROUTES: Final = (
    Route("/", pages.pipelines_page),
    Route("/replicas", pages.replicas_page),
    Route("/streams", pages.streams_page),
    Route("/graphs", pages.graphs_page),
    Route("/pipelines/{name}", pages.pipeline_page),
    Route("/pipelines/{name}/rows", pages.rows_page),
    Route("/rows/{model}", pages.row_page),
    Route("/rows/{model}/{row_id}", pages.row_page),
    Route("/checks", pages.checks_page),
    Route("/live/{topic}", pages.live_stream),
    Route("/act/{action}", act, methods=["POST"]),
    Route("/api/status", pages.status_document),
    Route("/api/checks", pages.checks_document),
    Route("/api/replicas", pages.replicas_document),
    Route("/api/pipelines/{name}/rows", pages.rows_document),
    Route("/api/rows/{model}", pages.row_document),
    Route("/api/timelines/{model}", pages.timeline_document),
    Route("/api/rows/{model}/{row_id}", pages.row_document),
)


class Dashboard:
    """Shows the pipelines of a host, and lets those act on them who may.

        app.mount("/rowlock", Dashboard(manager, authorize=staff))

    Args:
        source: a `PipelineManager`, an `Observer`, whose rates are shown then, an `Insight`, or a
            function that gives one of them at each request.
        authorize: the host's function of the request and a `ViewerAction`, async or plain: it
            returns a `Viewer` with that person's name, or None. It is asked for every request.
        prefix: the path at which the app is mounted, where the framework takes it out of the path
            and sets no root path; the whole of it, as a browser sees it.
        streams: of whose flows the status is shown, on the database of the first pipeline.
        graphs: standing graphs of this process, whose statistics are shown.

    Raises:
        ConfigurationError: `source` is nothing of these, or `authorize` is no function.
    """

    def __init__(
        self,
        source: Source | Callable[[], Source],
        *,
        authorize: Authorize,
        prefix: str | None = None,
        streams: Iterable[Streams] = (),
        graphs: Iterable[StandingGraph[Any, Any]] = (),
    ) -> None:
        if not isinstance(source, Source) and not callable(source):
            raise ConfigurationError(
                "a Dashboard takes a PipelineManager, an Observer, an Insight or a function that"
                f" gives one, not {source!r:.100}"
            )
        self._source, self._prefix = source, prefix
        self._wings = ShownWings.of(streams, graphs)
        self._gatekeeper = Gatekeeper(authorize)
        self._recent, self._streams = RecentAnswers(), LiveStreams()
        self._insight: tuple[object, Insight] | None = None

    def __repr__(self) -> str:
        return f"<Dashboard of {type(self._source).__name__}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection, as ASGI has it."""
        if scope["type"] == "http":
            answer = await self._answer(Request(scope, receive))
            await answer(scope, receive, secured(send))
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        name = ""
        while scope["type"] == "lifespan" and name != "lifespan.shutdown":
            name = (await receive())["type"]
            await send({"type": f"{name}.complete"})

    async def _answer(self, request: Request) -> Answer:
        path = self._path_of(request.scope)
        mount = self._prefix or request.scope.get("root_path") or ""
        to = PageAddresses(mount.rstrip("/"))
        if path.startswith("/static/") and request.method in {"GET", "HEAD"}:
            name = path.removeprefix("/static/")
            is_there = name in KINDS
            return (
                static_file(name) if is_there else PlainTextResponse("there is no such file", 404)
            )
        try:
            return await made_within(self._page(request, path, to), PAGE_S_MAX)
        # Whatever it is, of the host's database or its code: a page shows it.
        except Exception as error:  # noqa: BLE001
            return _refused(error, to, path=path)

    async def _page(self, request: Request, path: str, to: PageAddresses) -> Answer:
        viewer = await self._gatekeeper.viewer(request, ViewerAction(LOOK))
        if viewer is None:
            if request.method not in {"GET", "HEAD"}:
                audit_refusal(Act("act", "somebody", "", path), NOT_ALLOWED)
            raise HTTPException(403, NOT_ALLOWED)
        handler = _handler_of(request, path)
        insight, observer = self._asked()
        visit = PageVisit(
            request,
            viewer,
            insight,
            observer,
            self._recent,
            self._streams,
            self._gatekeeper,
            to,
            self._wings,
        )
        return await handler(visit)

    def _asked(self) -> tuple[Insight, Observer | None]:
        source: Any = self._source
        if not isinstance(source, Source):
            source = source()
        if self._insight is None or self._insight[0] is not source:
            if not isinstance(source, Source):
                raise ConfigurationError(f"a Dashboard was given a {type(source).__name__}")
            made = source if isinstance(source, Insight) else Insight.of(source)
            self._insight = (source, made)
        return self._insight[1], source if isinstance(source, Observer) else None

    def _path_of(self, scope: Scope) -> str:
        # Frameworks differ in whether the path has that of the mount in front.
        path: str = scope["path"]
        for front in (scope.get("root_path", "").rstrip("/"), (self._prefix or "").rstrip("/")):
            if front and (path == front or path.startswith(f"{front}/")):
                path = path[len(front) :]
                break
        # Litestar ends each path of a mount in a slash. No address of ours does: a key that has one
        # is asked for behind the question mark.
        return path.rstrip("/") or "/"


def _handler_of(request: Request, path: str) -> Handler:
    scope = dict(request.scope) | {"path": path, "root_path": ""}
    is_there = False
    for route in ROUTES:
        match, found = route.matches(scope)
        if match is Match.FULL:
            request.scope["path_params"] = found["path_params"]
            handler: Handler = route.endpoint
            return handler
        is_there = is_there or match is Match.PARTIAL
    if is_there:
        raise HTTPException(405, "This address takes no such request.")
    raise HTTPException(404, "There is no such page.")


def _refused(error: Exception, to: PageAddresses, *, path: str) -> Response:
    refusal = refusal_of(error)
    if not refusal.is_expected:
        extra = {"error": describe(error)}
        logger.error("the dashboard cannot make a page: %(error)s", extra, exc_info=error)
    if path.startswith("/api/"):
        return pages.refused_as_json(refusal)
    return HTMLResponse(render("refused.html", to=to, refusal=refusal), refusal.status)


KEY_BYTES: Final = 24
DRAIN_S_MAX: Final = 5  # how long the server waits for open streams when it ends, in seconds


class KeyedDashboard:
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
    import uvicorn  # noqa: PLC0415 - a host that mounts the dashboard has a server already

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
