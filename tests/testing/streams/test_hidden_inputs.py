"""What a handler asks of the system is named, and what libraries ask for themselves is not."""

from __future__ import annotations

import gc
import importlib
import linecache
import logging
import os
import re
import socket
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from rowlock.streams import StepContext
from rowlock.testing.streams import hidden_inputs
from rowlock.testing.streams.hidden_inputs import HiddenInputs

from ...streams.computing.stages import STEP
from .house import Visit

pytestmark = pytest.mark.either_database


def uses_of(call: Callable[[], Any]) -> list[str]:
    inputs = HiddenInputs()
    with inputs._watching("add"):
        call()
    return list(inputs.found)


def receives() -> bytes:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"5")
        return other.recv(1)


def reads_in_lines() -> str:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"5\n")
        with other.makefile() as lines:
            return lines.readline()


HERE = Path(__file__)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: os.environ["PATH"], "os.environ"),
        (lambda: os.environ.get("NO_SUCH"), "os.environ"),
        (lambda: os.getenv("NO_SUCH", "5"), "os.environ"),
        (lambda: "NO_SUCH" in os.environ, "os.environ"),
        (lambda: dict(os.environ), "os.environ"),
        (lambda: os.path.expandvars("$PATH"), "os.environ"),
        (lambda: os.stat(HERE), "os.stat"),  # noqa: PTH116 - as a host may
        (HERE.exists, "os.stat"),
        (lambda: HERE.stat().st_mtime, "os.stat"),
        (lambda: os.listdir(HERE.parent), "os.listdir"),  # noqa: PTH208
        (lambda: list(os.walk(HERE.parent)), "os.scandir"),
        (Path.cwd, "os.getcwd"),
        (lambda: os.close(os.open(HERE, os.O_RDONLY)), "os.open"),
        (lambda: HERE.read_text(encoding="utf-8"), "io.open"),
        (lambda: socket.gethostname(), "socket.gethostname"),  # noqa: PLW0108
        (lambda: datetime.now(UTC), "datetime.now"),
        (lambda: uuid.uuid4().fields[3], "os.urandom"),
        (lambda: Random().randrange(1, 100), "random.Random"),
        (lambda: hash("a key") % 100, "hash"),
        (receives, "socket.recv"),
        (reads_in_lines, "socket.recv_into"),
    ],
)
def test_what_is_outside_is_named(call: Callable[[], Any], name: str) -> None:
    """A handler would pass that comes to something else on another machine, or a day later."""
    found = uses_of(call)
    assert any(use.startswith(f"'add' calls {name} at ") for use in found), found
    advice = "use step\\.|use the key, or hashlib|use the events and the state"
    assert all(re.search(advice, use) for use in found), found


def a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return a module of another library, which has settings of its own."""
    (tmp_path / "has_settings.py").write_text(
        "import os, pathlib\n\ndef call():\n    os.environ.get('DEBUG')\n"
        "    return pathlib.Path('.').exists()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "has_settings", raising=False)
    places = (*hidden_inputs._NOT_THE_HOST, str(tmp_path))
    monkeypatch.setattr(hidden_inputs, "_NOT_THE_HOST", places)
    return importlib.import_module("has_settings")


def test_settings_of_a_library_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A handler would be blamed for what a library looks up that it calls."""
    assert uses_of(a_library(monkeypatch, tmp_path).call) == []


def test_an_import_is_no_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A handler would be blamed for the files of a module that it imports when it is called."""
    (tmp_path / "looks_around.py").write_text("import os\nNAME = os.getenv('HOME')\nos.getcwd()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "looks_around", raising=False)
    assert uses_of(lambda: importlib.import_module("looks_around")) == []


def warns() -> None:
    """Have a warning shown, with the line of the file."""
    linecache.clearcache()
    warnings.formatwarning("soon", UserWarning, __file__, 1)


def sends() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"5")


@pytest.mark.parametrize("call", [warns, sends])
def test_what_gives_nothing_back_is_no_input(call: Callable[[], Any]) -> None:
    """A handler could not warn, and no library under it count."""
    assert uses_of(call) == []


class Finalized:
    """What asks the clock when it is gone."""

    def __del__(self) -> None:
        time.time()


def leaves_a_circle() -> None:
    circle = [Finalized()]
    circle.append(circle)  # type: ignore[arg-type]
    del circle
    gc.collect(0)


def test_what_the_garbage_collector_calls_is_no_input() -> None:
    """A handler would be blamed, now and then, for what a library does whose objects are freed or
    that measures the collector.
    """

    def measures(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    gc.callbacks.append(measures)
    try:
        assert uses_of(leaves_a_circle) == []
    finally:
        gc.callbacks.remove(measures)


def test_what_is_the_same_each_time_is_no_input() -> None:
    """A host could not log, hash values or draw numbers as it should."""
    step = StepContext(STEP, "add", {}, later={})

    def harmless() -> int:
        logging.getLogger(__name__).warning("a key of %s events", 5)
        seen = {Visit("p", "a"), Visit("p", "a")}
        drawn = step.random("a").randrange(9) + Random(5).randrange(9)
        return deepcopy(0) + drawn + len(seen) + step.now.year

    assert uses_of(harmless) == []
