"""What a host says of one run, checked before anything begins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from rowlock.graph.building.arguments import bounded, check_plain_function, check_type, seconds_of
from rowlock.graph.building.topology import NODES_MAX
from rowlock.graph.lanes.runtime import GraphRuntime

SECONDS_MAX: Final = 366 * 24 * 3600.0
"""The longest time limit and the longest grace, in seconds."""


class RunSettings(NamedTuple):
    """How one run is to go on, and to end; see `run_graph`."""

    time_limit_s: float | None = None
    keep_going: Callable[[], bool] | None = None
    grace_s: float | None = None
    threads: int | None = None
    runtime: GraphRuntime | None = None
    shows_values: bool = False


DEFAULTS: Final = RunSettings()
"""Of a run about which a host says nothing."""


def run_settings(
    *,
    time_limit: timedelta | float | None,
    keep_going: Callable[[], bool] | None,
    grace: timedelta | float | None,
    threads: int | None,
    runtime: GraphRuntime | None,
    shows_values: bool,
) -> RunSettings:
    """Return the settings of a run.

    Raises:
        GraphError: one is of another type, or out of its bounds.
    """
    check_keep_going(keep_going)
    check_runtime(runtime)
    check_type("shows_values", shows_values, bool)
    return RunSettings(
        seconds_of("time_limit", time_limit, high=SECONDS_MAX, may_be_0=True),
        keep_going,
        seconds_of("grace", grace, high=SECONDS_MAX, may_be_0=True),
        None if threads is None else bounded("threads", threads, high=NODES_MAX),
        runtime,
        shows_values,
    )


def check_keep_going(keep_going: object) -> None:
    """Check what is asked before each call.

    Raises:
        GraphError: it cannot be called, or its coroutine would never be awaited.
    """
    if keep_going is not None:
        check_plain_function("keep_going", keep_going)


def check_runtime(runtime: object) -> None:
    """Check whose threads are to make calls.

    Raises:
        GraphError: it is no runtime.
    """
    if runtime is not None:
        check_type("runtime", runtime, GraphRuntime)
