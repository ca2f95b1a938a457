"""Pages about flows of streams and standing graphs, where the host has handed them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from starlette.responses import Response

from rowlock.clock import monotonic
from rowlock.dashboard.drawing.graph_drawing import GraphDrawing, drawing_of
from rowlock.dashboard.guarding.refusals import refusal_of
from rowlock.dashboard.visits import PageVisit
from rowlock.errors import RowlockError
from rowlock.graph import GraphStatistics, StandingGraph
from rowlock.graph.building.pictures import picture_of
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams import Streams, StreamStatus

FLOWS_MAX: Final = 50
"""Most flows that are shown."""
FLOWS_S_MAX: Final = 2.0
"""For how long flows are asked, in seconds; of those that come later the page says so."""
NOT_ASKED: Final = "Not asked: the flows before it took all the time that there was."
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


@dataclass(frozen=True, slots=True)
class ShownGraph:
    """A graph on its page: what its operators did, and its picture."""

    statistics: GraphStatistics
    drawing: GraphDrawing


async def streams_page(visit: PageVisit) -> Response:
    """Show how far each flow is, and what it waits for."""
    part = await streams_part(visit)
    return visit.page("streams.html", live=visit.addresses.live("streams"), part=part)


async def streams_part(visit: PageVisit) -> str:
    """Return the flows."""

    async def make() -> str:
        flows = [(each, one) for each in visit.wings.streams for one in each.flows.values()]
        ends = monotonic() + FLOWS_S_MAX
        shown = [
            await _shown(visit, streams, flow)
            if monotonic() < ends
            else ShownFlow(flow.name, None, NOT_ASKED)
            for streams, flow in flows[:FLOWS_MAX]
        ]
        return visit.part("parts/streams.html", flows=shown)

    return await visit.recent.get(("streams", visit.addresses.base), make)


async def _shown(visit: PageVisit, streams: Streams, flow: Any) -> ShownFlow:
    leased = LeasedTable.of(streams.tables.flow_model)

    async def ask(connection: AsyncConnection) -> StreamStatus:
        # Its own session ends with it; the transaction is that of the question.
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            status: StreamStatus = await flow.status(session)
            return status

    try:
        # Bounded as every question is: a page that is gone leaves nothing that waits for a lock.
        sessions = visit.insight.session_factory
        return ShownFlow(flow.name, await visit.insight.read(leased, ask, sessions=sessions))
    except (SQLAlchemyError, RowlockError, OSError) as error:
        return ShownFlow(flow.name, None, refusal_of(error).sentence)


async def graphs_page(visit: PageVisit) -> Response:
    """Show what the graphs of this process do."""
    part = await graphs_part(visit)
    return visit.page("graphs.html", live=visit.addresses.live("graphs"), part=part)


async def graphs_part(visit: PageVisit) -> str:
    """Return the graphs, of this process alone."""
    return visit.part("parts/graphs.html", graphs=[_drawn(one) for one in visit.wings.graphs])


def _drawn(graph: StandingGraph[Any, Any]) -> ShownGraph:
    statistics = graph.statistics()
    return ShownGraph(statistics, drawing_of(picture_of(graph.graph), statistics.operators))
