"""What a value costs on several ways through the same work, one after the other in one round.

Processor time counts first: it hardly moves with what else the machine does. Rounds take turns in
which way comes first, and which last.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from measure import Figures, Scale

Way = Callable[[], Awaitable[object]]
"""Has all values go through some work."""


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float


async def cost_of(way: Way) -> Cost:
    gc.collect()
    cpu, began = time.process_time(), time.perf_counter()
    await way()
    return Cost(time.process_time() - cpu, time.perf_counter() - began)


async def costs_of(ways: dict[str, Way], scale: Scale) -> dict[str, Cost]:
    """Return what each way takes, in the order of `ways` or backwards."""
    names = list(reversed(ways)) if scale.limit_first else list(ways)
    found = {name: await cost_of(ways[name]) for name in names}
    return {name: found[name] for name in ways}


def per_value(costs: dict[str, Cost], count: int) -> Figures:
    """Return the processor time of a value on each way, in microseconds."""
    return {f"{name}, CPU µs": cost.cpu_s / count * 1e6 for name, cost in costs.items()}


def rates(costs: dict[str, Cost], count: int) -> Figures:
    return {f"{name}, values/s": count / cost.wall_s for name, cost in costs.items()}


def cpu_ratios(costs: dict[str, Cost], pairs: Iterable[tuple[str, str]]) -> Figures:
    """Return how many times the processor time of the second way the first takes."""
    return {f"{one} / {other}": costs[one].cpu_s / costs[other].cpu_s for one, other in pairs}


def rate_ratios(costs: dict[str, Cost], pairs: Iterable[tuple[str, str]]) -> Figures:
    """Return how many times the values a second of the second way the first has."""
    return {f"{one} / {other}": costs[other].wall_s / costs[one].wall_s for one, other in pairs}


def expect(what: str, found: object, wanted: object) -> None:
    """Refuse figures of a way that did not do the work."""
    if found != wanted:
        msg = f"{what}: {found}, not {wanted}"
        raise AssertionError(msg)
