"""A bucket on loopback: HEAD asks for an object, PUT stores it. In threads of its own, so that it
answers whatever its clients do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bucket(ThreadingHTTPServer):
    """Stores objects in memory.

    Attributes:
        objects: by name.
        puts: how many were sent.
        url: where it answers.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.puts = 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _bucket(self) -> Bucket:
        assert isinstance(self.server, Bucket)
        return self.server

    def do_HEAD(self) -> None:
        self._answer(200 if self.path[1:] in self._bucket.objects else 404)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self._bucket.lock:
            self._bucket.objects[self.path[1:]] = body
            self._bucket.puts += 1
        self._answer(201)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its base has it
        """Log nothing."""


@contextmanager
def serving_bucket() -> Iterator[Bucket]:
    """Serve an empty bucket in the block."""
    with Bucket() as bucket:
        thread = threading.Thread(target=bucket.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield bucket
        finally:
            bucket.shutdown()
            thread.join()
