"""The event loop of a simulation: virtual time, and no turn for processes that are dead or frozen.

The one idea: the loop takes each callback from one queue, and each callback knows the context in which it was made. The queue hands
out those of running processes; what belongs to another is kept with its process, which may be thawed.

Source: `asyncio.base_events.BaseEventLoop._run_once`, which passes over handles that are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque

from rowlock.testing.simulation.processes import current_process
from rowlock.testing.virtual_time import VirtualTimeLoop

__all__ = ["SimulationLoop"]


class SimulationLoop(VirtualTimeLoop):
    """A virtual-time loop that gives no turn to processes that do not run."""

    def __init__(self, *, max_virtual_s: float, max_iterations: int) -> None:
        """Set the limits of `VirtualTimeLoop`."""
        super().__init__(max_virtual_s=max_virtual_s, max_iterations=max_iterations)
        self._ready = _Turns(self)


class _Turns(deque[asyncio.Handle]):
    """The callbacks whose turn it is."""

    def __init__(self, loop: SimulationLoop) -> None:
        super().__init__()
        self._nothing = asyncio.Handle(lambda: None, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(current_process)  # type: ignore[attr-defined]
        if process is None or process.is_running:
            return handle
        process.held.append(handle)
        return self._nothing
