"""What a handler uses beside its arguments: the clock, chance, and what another process has
otherwise. Found by its calls while it runs.

The one idea: the interpreter reports each call of a function that is written in C, and all of these
are. So it does not matter by which name or through which library a handler calls them.

What the standard library looks up for itself (files of a module that is imported, variables of the
environment) is no input, so questions about files and the environment count where the host asks
them, by itself or through the standard library. An answer from a socket counts, whichever code
reads it.

Not here: what depends on the order of a set, which is no call (``contract.py``), and what a
library asks for that is written in C, such as a driver of a database.
"""

from __future__ import annotations

import builtins
import gc
import linecache
import os
import random
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final

import rowlock
from rowlock.streams.computing.handlers import StageHandler
from rowlock.streams.program import FlowProgram

SHOWN_MAX: Final = 5
_CLOCK: Final = "use step.now, which is recorded with the step"
_CHANCE: Final = "use step.random(key), or step.idempotency_key() for a name that is new"
_PROCESS: Final = "use the key, or hashlib: it is another one in each process"
_OUTSIDE: Final = "use the events and the state: what is outside may have changed in a replay"

_CLOCKS: Final = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("localtime", "gmtime"),
)
_CALLS: Final[Mapping[Any, str]] = {
    **{getattr(time, name): _CLOCK for name in _CLOCKS},
    os.urandom: _CHANCE,
    os.getpid: _PROCESS,
    builtins.open: _OUTSIDE,
}
_OF_THE_SYSTEM: Final = frozenset(
    getattr(module, name)
    for module, names in {
        os: (
            *("stat", "lstat", "access", "open", "listdir", "scandir", "readlink", "getcwd"),
            *("statvfs", "getlogin", "uname", "cpu_count", "getloadavg"),
        ),
        socket: ("gethostname",),
    }.items()
    for name in names
    if hasattr(module, name)  # Some systems have fewer.
)
_ENVIRONMENT: Final = frozenset(
    getattr(type(os.environ), name).__code__ for name in ("__getitem__", "__iter__")
)
_FROM_SOCKETS: Final = frozenset(
    {"recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "_accept", "read"}
)
_SOCKETS: Final = frozenset({"socket", "_SSLSocket"})
_ONLY_BY_THE_HOST: Final[Mapping[Any, str]] = {builtins.hash: _PROCESS, builtins.id: _PROCESS}
"""Libraries call these for dictionaries of their own, which does no harm."""
_TIMES: Final = frozenset({"now", "utcnow", "today"})
_SHARED_CHANCE: Final = getattr(random.random, "__self__", None)
_HARMLESS: Final = frozenset(
    {"logging", "importlib", "_frozen_importlib", "_frozen_importlib_external"}
    | {"warnings", "linecache", "traceback"}
)
"""What these ask for changes nothing of what a handler returns."""
_STDLIB: Final = str(Path(sysconfig.get_path("stdlib")))
_PACKAGES: Final = tuple(str(Path(sysconfig.get_path(name))) for name in ("purelib", "platlib"))
_NOT_THE_HOST: Final = (_STDLIB, *_PACKAGES, str(Path(rowlock.__file__).parent))


@dataclass
class HiddenInputs:
    """Watches the handlers of a flow; `found` has each use once, in words."""

    found: dict[str, None] = field(default_factory=dict)

    def __str__(self) -> str:
        more = len(self.found) - SHOWN_MAX
        shown = list(self.found)[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])
        return "; ".join(shown)

    def watched(self, program: FlowProgram) -> FlowProgram:
        """Return a flow with the same handlers, whose calls are watched."""
        return replace(program, stages=[self._watched(stage) for stage in program.stages])

    def _watched(self, stage: StageHandler) -> StageHandler:
        call = stage.call

        @wraps(call, updated=())
        def watched_call(*args: Any) -> Any:
            with self._watching(stage.name):
                return call(*args)

        return replace(stage, call=watched_call)

    @contextmanager
    def _watching(self, handler: str) -> Iterator[None]:
        begin = sys._getframe()

        def look(frame: FrameType, event: str, arg: Any) -> None:
            advice = name = None
            if event == "c_call":
                name, advice = _name(arg), _advice(arg, frame)
            elif event == "call" and _is_unseeded(frame):
                name, advice = "random.Random", _CHANCE
            elif event == "call" and frame.f_code in _ENVIRONMENT and _asks(frame):
                name, advice = "os.environ", _OUTSIDE
            if advice is not None and not _is_harmless(frame, begin):
                self.found[f"{handler!r} calls {name} {_place(frame, begin)}: {advice}"] = None

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(before)


def _advice(called: Any, frame: FrameType) -> str | None:
    """Return what to use instead of a function; None if it is harmless."""
    owner = getattr(called, "__self__", None)
    if owner is not None and owner is _SHARED_CHANCE:
        return _CHANCE
    if isinstance(owner, type) and issubclass(owner, date) and called.__name__ in _TIMES:
        return _CLOCK
    if called.__name__ in _FROM_SOCKETS and _is_socket(owner):
        return _OUTSIDE
    with suppress(TypeError):  # of an object that has no hash
        return _advice_on_function(called, frame)
    return None


def _advice_on_function(called: Any, frame: FrameType) -> str | None:
    if called in _ONLY_BY_THE_HOST:
        is_own = _is_of_the_host(frame) and frame.f_code.co_name != "__hash__"
        return _ONLY_BY_THE_HOST[called] if is_own else None
    if called in _OF_THE_SYSTEM:
        return _OUTSIDE if _asks(frame) else None
    return _CALLS.get(called)


def _asks(frame: FrameType | None) -> bool:
    """Whether the host asks, by itself or through the standard library, and no other library."""
    while frame is not None and _is_of_stdlib(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and _is_of_the_host(frame)


def _is_of_stdlib(path: str) -> bool:
    is_frozen = path.startswith("<frozen ")
    return is_frozen or (path.startswith(_STDLIB) and not path.startswith(_PACKAGES))


def _is_socket(owner: object) -> bool:
    kinds = ((kind.__module__, kind.__name__) for kind in type(owner).__mro__)
    return any(module in ("_socket", "_ssl") and name in _SOCKETS for module, name in kinds)


def _is_unseeded(frame: FrameType) -> bool:
    """Whether a frame seeds a generator of random numbers from chance."""
    return frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None


def _name(called: Any) -> str:
    owner = getattr(called, "__self__", None)
    if owner is _SHARED_CHANCE:
        return f"random.{called.__name__}"
    if _is_socket(owner):
        return f"socket.{called.__name__}"
    of = owner.__name__ if isinstance(owner, type) else str(called.__module__).lstrip("_")
    of = "os" if of in ("posix", "nt") else of
    return called.__name__ if of == "builtins" else f"{of}.{called.__name__}"


def _frames(frame: FrameType | None, begin: FrameType) -> Iterator[FrameType]:
    while frame is not None and frame is not begin:
        yield frame
        frame = frame.f_back


def _is_harmless(frame: FrameType, begin: FrameType) -> bool:
    """Whether a library whose answers stay inside, or the garbage collector, makes the call."""
    collectors = [getattr(one, "__code__", None) for one in gc.callbacks]
    return any(
        str(one.f_globals.get("__name__")).partition(".")[0] in _HARMLESS
        or one.f_code in collectors
        or one.f_code.co_name == "__del__"
        for one in _frames(frame, begin)
    )


def _is_of_the_host(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    # What has no file was made by a library, such as the methods of a dataclass.
    return not path.startswith(("<", *_NOT_THE_HOST))


def _place(frame: FrameType, begin: FrameType) -> str:
    of_host = (one for one in _frames(frame, begin) if _is_of_the_host(one))
    at = next(of_host, frame)
    path, line = Path(at.f_code.co_filename), at.f_lineno
    text = linecache.getline(str(path), line).strip()
    return f"at {path.name}:{line}, {text!r}"
