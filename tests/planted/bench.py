"""Where bugs are planted: a copy of the tree, used for one bug after the other, with a PostgreSQL
server of its own.

The one idea: to copy the tree, compile it and start a server takes longer than most of the tests,
so a bench does each once. The trap: a compiled file is taken for its source as long as both tell
the same time and size. So each planted file gets a time that no file here ever had.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bug import Bug
from pytest_child import run_pytest

SECONDS_MAX = 300
"""Longest time for the tests of one bug; a bug that makes them hang is found."""
HANGS = ("-W", "ignore::pluggy.PluggyTeardownRaisedWarning")
"""A test that is out of time in its teardown has failed; as an error, this warning would end
pytest itself.
"""
SERVER_VARIABLE = "ROWLOCK_TEST_POSTGRESQL_URL"


class Bench:
    """A copy of all that the tests need, for as long as the block lasts."""

    def __init__(self, root: Path) -> None:
        """Copy the tree at `root`."""
        self._folder = Path(
            tempfile.mkdtemp(
                prefix="rowlock-planted-", dir="/tmp" if Path("/tmp").is_dir() else None
            )
        )
        for part in filter(
            lambda name: (root / name).is_dir(), ("src", "tests", "examples", "alembic")
        ):
            shutil.copytree(
                root / part, self._folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(root / "pyproject.toml", self._folder)
        self._planted_num = 0
        self._server: Any = None
        self._has_databases = (root / "src" / "rowlock" / "testing" / "databases.py").exists()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server, and remove all of it."""
        try:
            if self._server is not None:
                self._server.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Have `bug` in the copy for as long as the block lasts."""
        path = self._folder / "src" / "rowlock" / bug.file
        text, was = path.read_text(encoding="utf-8"), path.stat()
        self._planted_num += 1
        path.write_text(bug.planted_in(text), encoding="utf-8")
        os.utime(path, (was.st_atime, int(was.st_mtime) + 10 * self._planted_num))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    def run_tests(self, tests: Iterable[str], *options: str, seconds_max: float) -> tuple[int, str]:
        """Return pytest's exit code for `tests` in the copy, 1 if they never end, and what was
        said.
        """
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder / "src"),
            **self._server_there(),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return run_pytest(
            ["-q", "-p", "no:cacheprovider", "-o", "timeout=100", *HANGS, *options, *tests],
            folder=self._folder,
            environment=environment,
            seconds_max=seconds_max,
        )

    def _server_there(self) -> dict[str, str]:
        """Return how tests find the server; it is started again if a test has ended it."""
        if not self._has_databases or SERVER_VARIABLE in os.environ:
            return {}
        # Of the tree that is at work, not the copy's.
        from rowlock.testing import PostgresqlServer  # noqa: PLC0415

        if self._server is None:
            directory = self._folder / "server"
            directory.mkdir()
            self._server = PostgresqlServer(directory)
        return {SERVER_VARIABLE: self._server.start().render_as_string(hide_password=False)}
