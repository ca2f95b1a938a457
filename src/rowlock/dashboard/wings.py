"""Pages about flows of streams and standing graphs, where the host has handed them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from rowlock.dashboard.drawing.graph_drawing import HEIGHT, WIDTH, drawing_of
from rowlock.dashboard.guarding.refusals import refusal_of
from rowlock.dashboard.visits import PageVisit
from rowlock.errors import RowlockError
from rowlock.graph.building.pictures import picture_of
from rowlock.streams import StreamStatus

FLOWS_MAX: Final = 50
"""Most flows that are shown."""
SHARDS_SHOWN: Final = 64
"""Most shards of a flow that are shown: those that lag most."""


@dataclass(frozen=True, slots=True)
class ShownFlow:
    """A flow on its page.

    Attributes:
        name: of the flow.
        status: how far it is; None if it could not be asked.
        trouble: why it could not be asked.
    """

    name: str
    status: StreamStatus | None
    trouble: str = ""

    @property
    def shards(self) -> list[Any]:
        """Its shards, those that lag most first."""
        shards = () if self.status is None else self.status.shards
        return sorted(shards, key=lambda one: (not one.is_parked, -one.lag))[:SHARDS_SHOWN]


async def streams_page(visit: PageVisit) -> Response:
    """Show how far each flow is, and what it waits for."""
    part = await streams_part(visit)
    return visit.page("streams.html", live=visit.addresses.live("streams"), part=part)


async def streams_part(visit: PageVisit) -> str:
    """Return the flows."""

    async def make() -> str:
        flows = [one for each in visit.wings.streams for one in each.flows.values()]
        return visit.part(
            "parts/streams.html", flows=[await _shown(visit, one) for one in flows[:FLOWS_MAX]]
        )

    return await visit.recent.get(("streams", visit.addresses.base), make)


async def _shown(visit: PageVisit, flow: Any) -> ShownFlow:
    try:
        async with visit.insight.session_factory() as session:
            return ShownFlow(flow.name, await flow.status(session))
    except (SQLAlchemyError, RowlockError, OSError) as error:
        return ShownFlow(flow.name, None, refusal_of(error).sentence)


async def graphs_page(visit: PageVisit) -> Response:
    """Show what the graphs of this process do."""
    part = await graphs_part(visit)
    return visit.page("graphs.html", live=visit.addresses.live("graphs"), part=part)


async def graphs_part(visit: PageVisit) -> str:
    """Return the graphs, of this process alone."""
    graphs = [(one.statistics(), drawing_of(picture_of(one.graph))) for one in visit.wings.graphs]
    return visit.part("parts/graphs.html", graphs=graphs, height=HEIGHT, width=WIDTH)
