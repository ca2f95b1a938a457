"""What a host hands to its dashboard besides pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.graph import StandingGraph
from rowlock.streams import Streams


@dataclass(frozen=True, slots=True)
class ShownWings:
    """What a host has besides pipelines.

    Attributes:
        streams: of whose flows the status is shown.
        graphs: of which the statistics are shown.
    """

    streams: tuple[Streams, ...]
    graphs: tuple[StandingGraph[Any, Any], ...]

    @classmethod
    def of(
        cls, streams: Iterable[Streams], graphs: Iterable[StandingGraph[Any, Any]]
    ) -> ShownWings:
        """Return them.

        Raises:
            ConfigurationError: one of them is something else.
        """
        made = cls(tuple(streams), tuple(graphs))
        strange: list[object] = [one for one in made.streams if not isinstance(one, Streams)]
        strange += [one for one in made.graphs if not isinstance(one, StandingGraph)]
        if strange:
            raise ConfigurationError(
                "a Dashboard takes streams=[Streams(...)] and graphs=[StandingGraph(...)], not"
                f" {strange[0]!r:.100}"
            )
        return made
