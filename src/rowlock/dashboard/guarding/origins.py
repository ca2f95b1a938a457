"""Which requests come from the dashboard's own pages, and what browsers are told about these.

The one idea: two proofs, and neither alone is enough. The browser says where a form was sent from;
and the form carries a token that only a page of this origin could read. No secret is shared, so any
replica takes the form.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

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
"""What every answer has, unless it says otherwise."""
TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[\w-]{43}", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}


def secured(send: Send) -> Send:
    """Return `send` with `HEADERS`."""

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
    """Return the token of the browser that asks; None if it has none."""
    token = request.cookies.get(_cookie(request))
    return token if token is not None and _TOKEN.fullmatch(token) else None


def fresh_token() -> str:
    """Return a token for a browser that has none."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def is_token_of(request: Request, given: str | None) -> bool:
    """Whether a form carries the token of its browser."""
    token = token_of(request)
    return token is not None and hmac.compare_digest(token.encode(), (given or "").encode())


def keep_token(response: Response, request: Request, *, token: str, path: str) -> None:
    """Have the browser keep `token`, for this origin alone and out of reach of scripts."""
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
