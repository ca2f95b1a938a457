"""What can go wrong, by name."""

from __future__ import annotations

from enum import Enum

__all__ = ["Fault"]


class Fault(Enum):
    """One kind of fault; `Scenario.faults` says which of them a simulation draws."""

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
