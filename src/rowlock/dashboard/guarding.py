"""Who may look and who may act, and what is refused: asked of the host for every request, proved by
the form, bounded in time.

The one idea: it fails closed. A host's function that raises, takes too long or returns something
else than a `Viewer` refuses the request, and the log says so. A form needs two proofs: the browser
says where it was sent from, and it carries a token that only a page of this origin could read. No
secret is shared, so any replica takes the form.

The trap: nothing can end a function that hangs in a thread, so an abandoned call keeps its place
until it returns. Else each request, also of a client without any right, would leave a thread
behind.

A refusal shows no text of an error that comes from the host or the database; the log has it.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Message, Send

from rowlock.errors import (
    ConfigurationError,
    HostCodeError,
    PipelineError,
    RowlockError,
    TransactionTimeout,
    describe,
)
from rowlock.insight.asking import wanted_within
from rowlock.insight.explanation import SeenLease
from rowlock.insight.migrations import PERSON_CHARS_MAX
from rowlock.insight.shown import shown
from rowlock.insight.steering import NotPausable, RowNotFound
from rowlock.logs import get_logger
from rowlock.spi import LeasedTable, is_outage
from rowlock.tasks import DaemonThreads

THREADS_MAX: Final = 16


class AuthorizeThreads:
    """Calls plain functions, `THREADS_MAX` at once, also if they never return."""

    def __init__(self) -> None:
        self._pool: DaemonThreads | None = None
        self._process = os.getpid()
        self._hanging: list[Future[Any]] = []

    async def call(self, function: Callable[..., object], *args: object) -> object:
        """Return the result of `function`; TimeoutError if earlier calls hang in all threads."""
        pool = self._threads()
        self._hanging = [one for one in self._hanging if not one.done()]
        if len(self._hanging) >= THREADS_MAX:
            raise TimeoutError(f"{THREADS_MAX} calls hang, one in each thread")
        called = pool.submit(copy_context().run, function, *args)
        try:
            return await asyncio.wrap_future(called)
        except asyncio.CancelledError:
            if not called.cancel():
                self._hanging.append(called)
            raise

    def _threads(self) -> DaemonThreads:
        if self._pool is None or self._process != os.getpid():
            # A child that was forked has none of its parent's threads.
            self._pool = DaemonThreads(THREADS_MAX, name="rowlock authorize")
            self._process, self._hanging = os.getpid(), []
        return self._pool


# ---------------------------------------------------------------- authorizing


logger = get_logger(__name__)

LOOK: Final = "look"
AUTHORIZE_S_MAX: Final = 5.0  # longest time for one answer of the host, in seconds
AUTHORIZING_MAX: Final = 256
"""Most questions to the host that are open at once; further ones are refused."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who may do what was asked.

    Attributes:
        name: 1 to 100 characters; it stands in the audit log.

    Raises:
        ValueError: the name is no such text.
    """

    name: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"a viewer's name is a text of 1 to {PERSON_CHARS_MAX} characters")


@dataclass(frozen=True, slots=True)
class ViewerAction:
    """What somebody wants to do.

    Attributes:
        name: ``look``, ``release``, ``park``, ``unpark``, ``make_due``, ``pause`` or ``resume``.
        model: the class of the row that is acted on; None for a pipeline, and if one looks.
        row_id: its key, as text.
        pipeline: the name of the pipeline that is acted on.
    """

    name: str
    model: str | None = None
    row_id: str | None = None
    pipeline: str | None = None

    @property
    def is_look(self) -> bool:
        """Whether nothing is to be changed."""
        return self.name == LOOK


Authorize: TypeAlias = Callable[[Any, ViewerAction], Viewer | Awaitable[Viewer | None] | None]
"""A host's function: called with the request and the action, it returns who that is."""


def anybody_may_look(request: HTTPConnection, action: ViewerAction) -> Viewer | None:
    """Let everybody look, and nobody act: for a page that nobody else can reach."""
    return Viewer("anybody") if action.is_look else None


def is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name.strip()) <= len(name) <= PERSON_CHARS_MAX


class Gatekeeper:
    """Asks the host's function, async or plain, and refuses whatever is no clear yes."""

    def __init__(self, authorize: Authorize) -> None:
        if not callable(authorize):
            raise ConfigurationError(
                "authorize is a function of the request and the action that returns a Viewer, or"
                f" None; not {authorize!r:.100}"
            )
        self._authorize = authorize
        self._asking = 0
        self._threads = AuthorizeThreads()

    async def viewer(self, request: HTTPConnection, action: ViewerAction) -> Viewer | None:
        if self._asking >= AUTHORIZING_MAX:
            self._refuse(action, "too many questions are open")
            return None
        self._asking += 1
        task = asyncio.create_task(self._answer(request, action), name="rowlock: authorize")
        task.add_done_callback(self._answered)
        try:
            await asyncio.wait({task}, timeout=AUTHORIZE_S_MAX)
        finally:
            if not task.done():
                task.cancel()
        return self._judged(task, action)

    def _answered(self, task: asyncio.Task[object]) -> None:
        self._asking -= 1
        retrieved(task)

    def _judged(self, task: asyncio.Task[object], action: ViewerAction) -> Viewer | None:
        if not task.done():
            self._refuse(action, f"no answer within {AUTHORIZE_S_MAX:g} s")
        elif task.cancelled():
            self._refuse(action, "it was cancelled")
        elif (error := task.exception()) is not None:
            self._refuse(action, describe(error) if isinstance(error, Exception) else "it failed")
        elif (answer := task.result()) is None:
            return None
        elif isinstance(answer, Viewer) and is_name(answer.name):
            return answer
        else:
            self._refuse(action, f"it returned a {type(answer).__name__}, and not a Viewer")
        return None

    async def _answer(self, request: HTTPConnection, action: ViewerAction) -> object:
        call = getattr(type(self._authorize), "__call__", None)  # noqa: B004 - its code is meant
        if any(map(inspect.iscoroutinefunction, (self._authorize, call))):
            answer: object = self._authorize(request, action)
        else:
            # One that waits would hold up the loop, and with it the pipelines of this replica.
            answer = await self._threads.call(self._authorize, request, action)
        return await answer if inspect.isawaitable(answer) else answer

    def _refuse(self, action: ViewerAction, why: str) -> None:
        text = "the dashboard refuses %(action)s: authorize gave no answer: %(error)s"
        logger.warning(text, {"action": action.name, "error": shown(why)})


# ---------------------------------------------------------------- proofs of a form


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src"
    " 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # With no-referrer browsers send the origin of a form as "null", and no form would work over
    # plain http.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""Of every answer, unless it sets others."""
TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[\w-]{43}", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}


def secured(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def is_same_origin(request: Request) -> bool:
    """Whether the browser says that a page of this origin sent the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    # Browsers leave that header out where the origin is not trustworthy: plain http, beyond
    # localhost. The scheme is not compared, since a proxy may end TLS.
    origin = urlsplit(request.headers.get("origin", ""))
    host = urlsplit(f"//{request.headers.get('host', '')}")
    try:
        port = origin.port or _PORTS.get(origin.scheme)
        ports = {port} if host.port is not None else set(_PORTS.values())
        is_as = (host.port or port) in ports
    except ValueError:
        return False
    return origin.scheme in _PORTS and origin.hostname == host.hostname is not None and is_as


def token_of(request: Request) -> str | None:
    token = request.cookies.get(_cookie(request))
    return token if token is not None and _TOKEN.fullmatch(token) else None


def fresh_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def is_token_of(request: Request, given: str | None) -> bool:
    token = token_of(request)
    return token is not None and hmac.compare_digest(token.encode(), (given or "").encode())


def keep_token(response: Response, request: Request, *, token: str, path: str) -> None:
    """Store `token` in the browser, for this origin alone and out of reach of scripts."""
    is_https = request.url.scheme == "https"
    response.set_cookie(
        _cookie(request),
        token,
        path="/" if is_https else path or "/",
        secure=is_https,
        httponly=True,
        samesite="strict",
    )


def _cookie(request: Request) -> str:
    return "__Host-rowlock" if request.url.scheme == "https" else "rowlock-token"


# ---------------------------------------------------------------- what a form has sent


FORM_BYTES_MAX: Final = 16_000
FIELDS_MAX: Final = 32
KIND: Final = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; raises HTTPException if it is none, or too long."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != KIND:
        raise HTTPException(415, f"A form is {KIND}.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX:,} bytes.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    fields = dict(pairs)
    if any("\x00" in value for value in fields.values()):
        raise HTTPException(400, "The form cannot be read.")
    return fields


def seen_lease(fields: Mapping[str, str], leased: LeasedTable) -> SeenLease:
    if not {"seen_owner", "seen_token"} <= fields.keys():
        raise HTTPException(400, "The form does not say which lease it was made for.")
    owner, token = fields["seen_owner"] or None, fields["seen_token"] or None
    try:
        if token is not None:
            leased.as_token(token)
    except ValueError as error:
        raise HTTPException(400, "The form names a lease that is none.") from error
    return SeenLease(owner, token)


# ---------------------------------------------------------------- the time of a page


T = TypeVar("T")

ENDING_S: Final = 1.0  # seconds of a page's time that are left for its questions to end


async def made_within(page: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of `page`; after `seconds` it is cancelled, and not waited for."""
    with wanted_within(seconds - ENDING_S):
        task = asyncio.create_task(page, name="rowlock: page")
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(retrieved)
    if not task.done():
        raise TimeoutError
    return task.result()


def retrieved(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task, or Python would log it as one that was never retrieved."""
    if not task.cancelled():
        task.exception()


# ---------------------------------------------------------------- refusals


NOT_ALLOWED: Final = "You may not do this."
AWAY: Final = "The database does not answer. If you have acted, look later whether it was done."
REFUSED: Final = "The database refused the question; the log says why."
UNEXPECTED: Final = "The page could not be made; the log says why."


@dataclass(frozen=True, slots=True)
class PageRefusal:
    """Why there is no page; what is not expected is logged."""

    status: int
    sentence: str
    is_expected: bool = True


def refusal_of(error: Exception) -> PageRefusal:
    if isinstance(error, HTTPException):
        return PageRefusal(error.status_code, error.detail)
    if isinstance(error, TransactionTimeout | TimeoutError | OSError) or is_outage(error):
        return PageRefusal(503, AWAY)
    if isinstance(error, SQLAlchemyError):
        return PageRefusal(503, REFUSED, is_expected=False)
    # What a HostCodeError says is what code of the host's has raised.
    if isinstance(error, HostCodeError) or not isinstance(error, RowlockError):
        return PageRefusal(500, UNEXPECTED, is_expected=False)
    status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 409)
    # Without the hint at the docs, which is for terminals; and as it is, since it may begin with
    # typed text.
    return PageRefusal(status, f"{shown(error.message, 500)}.")


_STATUSES: Final = (
    (RowNotFound, 404),
    (NotPausable, 409),
    (ConfigurationError, 404),
    (PipelineError, 400),
)
