"""What can go wrong, by name."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Fault(Enum):
    """One kind of fault; `Scenario.faults` says which of them a simulation draws.

    Most happen now and then until the faults are over. Those of `ALL_ALONG` are drawn once for a
    run: `LATENCY` and what raises in log calls, listeners and wakes lasts to its end, since the
    library has to live with it; `HOOKS` ends with the other faults.
    """

    KILL = "a replica or a service is killed, at once or at one of its next statements"
    FREEZE = "a process stands still, perhaps for longer than its leases, and goes on"
    OUTAGE = "nobody reaches the database for a while"
    CUT = "one process does not reach the database for a while"
    SLOW = "every statement takes long for a while"
    STATEMENT = "the connection is lost, or an error comes, before or after a statement"
    COMMIT = "the connection is lost before a COMMIT, or after it: its answer is lost"
    HINTS = "hints do not arrive for a while"
    EARLY_HINT = "hints come before anything was committed, or for nothing"
    SHUT_DOWN = "a replica is shut down, with much or little grace, and another one starts"
    CLOCK = "the wall clock of a process jumps by up to an hour"
    LATENCY = (
        "every statement of the run, BEGIN and COMMIT among them, takes a round trip of 0, 1, 5 or"
        " 25 ms"
    )
    LOGGING = "log handlers, filters or the LogRecordFactory of the host raise"
    LISTENERS = "event listeners of the host raise"
    WAKES = "wakes and relays that the host attached for hints raise"
    HOOKS = "`also`, `ready`, `on_stale` and `on_refused` raise"


ALL_ALONG: Final = frozenset(
    {Fault.LATENCY, Fault.LOGGING, Fault.LISTENERS, Fault.WAKES, Fault.HOOKS}
)
"""Kinds that are drawn once, for all of a run."""
