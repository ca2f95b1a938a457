"""What is true for all of a run: how far away the database is, and which code of the host raises.

The one idea: these are drawn apart from the faults that happen now and then. A run without them is,
byte for byte, the run that it would be if they did not exist.

Not here: how the host's code raises (``hostile_host.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final, NamedTuple

from .fault_kinds import ALL_ALONG, Fault

ROUND_TRIPS_S: Final = (0.0, 0.001, 0.005, 0.025)
"""How long one statement travels to the database and back. **Unit** virtual seconds."""
HOSTILE_CHANCE: Final = 0.3
"""How likely each kind of hostile code is part of a run."""


class Conditions(NamedTuple):
    """What a run has from its beginning: the round trip of every statement, and the `hostile`
    kinds of host code.
    """

    round_trip_s: float = 0.0
    hostile: tuple[Fault, ...] = ()

    @classmethod
    def drawn(cls, kinds: Collection[Fault], *, seed: int) -> Conditions:
        rng = Random(f"{seed} conditions")
        round_trip_s = rng.choice(ROUND_TRIPS_S)
        # All of them are drawn, also those that may not be: what a scenario leaves out changes
        # nothing else.
        drawn = [kind for kind in Fault if kind in ALL_ALONG and rng.random() < HOSTILE_CHANCE]
        return cls(
            round_trip_s if Fault.LATENCY in kinds else 0.0,
            tuple(kind for kind in drawn if kind in kinds and kind is not Fault.LATENCY),
        )

    def told(self) -> list[str]:
        far = (
            [f"every statement takes {1000 * self.round_trip_s:g} ms"] if self.round_trip_s else []
        )
        return far + [kind.value for kind in self.hostile]
