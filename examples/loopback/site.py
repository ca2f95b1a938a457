"""A site on loopback with real texts: slow, with pages that are missing at first and one that is
gone for good.
"""

from __future__ import annotations

import ast
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
LIBRARY = Path(json.__file__).parents[1]
TEXT_CHARS_MAX = 2_000
MISSING_EACH = 15
"""Each page of this number answers 404 at first."""
GONE = 7
"""The number of the page that answers 410."""


@cache
def texts() -> list[str]:
    """Return the pages of the repository's docs, and docstrings of the standard library."""
    pages = [path for path in sorted(DOCS.rglob("*.md")) if "changelog.d" not in path.parts]
    found = [path.read_text(encoding="utf-8") for path in pages]
    modules = {path.name: ast.parse(path.read_bytes()) for path in sorted(LIBRARY.glob("c*.py"))}
    found += [ast.get_docstring(module) or name for name, module in modules.items()]
    return [text[:TEXT_CHARS_MAX] for text in found]


def html_of(number: int, text: str) -> bytes:
    """Return a text as a page of the site."""
    return f"<html><head><title>{number}</title></head><body>{escape(text)}</body>".encode()


class Site(ThreadingHTTPServer):
    """Serves each text at its number.

    Attributes:
        pages: by number.
        missing: how often it has answered 404.
        url: where it answers.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = [html_of(number, text) for number, text in enumerate(texts())]
        self.missing = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._asked: set[int] = set()
        self._lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client was killed."""

    def status_of(self, number: int) -> int:
        """Return how a page answers this time."""
        if number == GONE:
            return 410
        with self._lock:
            is_first = number not in self._asked
            self._asked.add(number)
            if is_first and not number % MISSING_EACH:
                self.missing += 1
                return 404
        return 200


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        number = int(self.path[1:])
        time.sleep(0.01 + 0.01 * (number % 4))
        status = site.status_of(number)
        body = site.pages[number] if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its base has it
        """Log nothing."""


@contextmanager
def serving_site() -> Iterator[Site]:
    """Serve the texts in the block."""
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
