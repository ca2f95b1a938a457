"""What may happen to a pipeline, as a value: one step of one replica, some time that passes, or a
write of a service.

The one idea: a sequence of steps is data, so it can be drawn, shrunk, printed and taken again.

Not here: drawing them (`strategies`), and the actors that take them (`stepping`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rowlock.testing.stepping import Steps

__all__ = ["Step", "StepKind", "take_step"]


class StepKind(StrEnum):
    """What a step does."""

    FETCH = "fetch"
    """The replica claims rows: as many as `number`, at least one."""
    WORK = "work"
    """The replica works on the next item of its queue, if there is one."""
    BEAT = "beat"
    """The replica renews the leases that are near their end."""
    SWEEP = "sweep"
    """The replica clears lock columns that were left behind."""
    PASS = "pass"
    """So many `seconds` pass for everybody."""
    SERVICE = "service"
    """A service writes; which row, and what, is up to the test: `number` tells it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens.

    Attributes:
        kind: what it is.
        replica: which replica does it.
        seconds: how long it lasts, if time passes. **Unit** seconds.
        number: how many rows are fetched, or what a service is to do.
    """

    kind: StepKind
    replica: int = 0
    seconds: float = 0.0
    number: int = 1


async def take_step(
    step: Step,
    replicas: Sequence[Steps[Any]],
    *,
    service: Callable[[int], Awaitable[None]] | None = None,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Let one step happen.

    Args:
        step: what happens.
        replicas: each the `stepping` of a pipeline of its own.
        service: writes what the number of the step stands for; without it services write nothing.
        wait: lets time pass; on a virtual loop, with a database that follows it, the default does.
    """
    replica = replicas[step.replica % len(replicas)]
    match step.kind:
        case StepKind.FETCH:
            await replica.fetch_once(max(1, step.number))
        case StepKind.WORK:
            if replica.queued:
                await replica.work_once()
        case StepKind.BEAT:
            await replica.beat_once()
        case StepKind.SWEEP:
            await replica.sweep_once()
        case StepKind.PASS:
            await wait(step.seconds)
        case StepKind.SERVICE:
            if service is not None:
                await service(step.number)
