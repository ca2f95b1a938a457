"""What a handler uses beside its arguments: the clock, chance, and what another process has
otherwise. Found by its calls while it runs.

The one idea: the interpreter reports each call of a function that is written in C, and all of these
are. So it does not matter by which name or through which library a handler calls them.

Not here: what depends on the order of a set, which is no call (``another_process.py``).
"""

from __future__ import annotations

import builtins
import gc
import linecache
import os
import random
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

__all__ = ["HiddenInputs"]

SHOWN_MAX: Final = 5
"""How many calls are told."""
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
_ONLY_BY_THE_HOST: Final[Mapping[Any, str]] = {builtins.hash: _PROCESS, builtins.id: _PROCESS}
"""Libraries call these for dictionaries of their own, which does no harm."""
_TIMES: Final = frozenset({"now", "utcnow", "today"})
_SHARED_CHANCE: Final = getattr(random.random, "__self__", None)
_HARMLESS: Final = "logging"
_NOT_THE_HOST: Final = tuple(
    str(Path(place))
    for place in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        Path(rowlock.__file__).parent,
    )
)


@dataclass
class HiddenInputs:
    """Watches the handlers of a flow.

    Attributes:
        found: each use, in words, once.
    """

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
    with suppress(TypeError):  # of an object that has no hash
        if called in _ONLY_BY_THE_HOST:
            is_own = _is_of_the_host(frame) and frame.f_code.co_name != "__hash__"
            return _ONLY_BY_THE_HOST[called] if is_own else None
        return _CALLS.get(called)
    return None


def _is_unseeded(frame: FrameType) -> bool:
    """Whether a frame begins a generator of random numbers from chance."""
    return frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None


def _name(called: Any) -> str:
    owner = getattr(called, "__self__", None)
    if owner is _SHARED_CHANCE:
        return f"random.{called.__name__}"
    of = owner.__name__ if isinstance(owner, type) else str(called.__module__).lstrip("_")
    return called.__name__ if of == "builtins" else f"{of}.{called.__name__}"


def _frames(frame: FrameType | None, begin: FrameType) -> Iterator[FrameType]:
    while frame is not None and frame is not begin:
        yield frame
        frame = frame.f_back


def _is_harmless(frame: FrameType, begin: FrameType) -> bool:
    """Whether a library calls it that gives nothing of it back, or the garbage collector, which may
    begin anywhere.
    """
    collectors = [getattr(one, "__code__", None) for one in gc.callbacks]
    return any(
        str(one.f_globals.get("__name__")).partition(".")[0] == _HARMLESS
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
