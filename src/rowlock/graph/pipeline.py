"""`GraphPipeline`: a pipeline whose rows pass through one standing graph. The one file of the wing
that meets rows.

The one idea: `process` is one `submit`. Claims, leases, heartbeats, the guard, retries and the
drain stay where they are: a row that is lost or drained is a cancelled `submit`, an operator that
raises is a `process` that raised, and there is no second worker, queue or settler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeAlias, Unpack, cast

from rowlock import Outcome, Pipeline, PipelineItem, SettingsKeywords
from rowlock.errors import ConfigurationError, GraphDeadlockError, GraphError, describe
from rowlock.events import Event, emit
from rowlock.graph.flow import Flow, Graph
from rowlock.graph.standing import StandingGraph
from rowlock.graph.statistics import GraphStatistics
from rowlock.graph.topology import Node
from rowlock.pipelines.outcomes import OUTCOMES
from rowlock.spi import WORKERS_MAX, ModelT

NOT_YET: Final = "what __init__ sets after that is not there yet"

Items: TypeAlias = Flow[PipelineItem[ModelT], Outcome]
"""The rows that enter the graph of a `GraphPipeline`; an outcome leaves it at once."""
Outcomes: TypeAlias = Flow[Outcome | None, Outcome]
"""What leaves the graph of a `GraphPipeline` at its end: one outcome for each row."""


@dataclass(frozen=True, slots=True)
class GraphDeadlocked(Event):
    """The nodes of a pipeline's graph waited for each other; the rows inside are retried.

    `cycle` names the nodes that wait for the next one each, `text` is the graph with the flags of
    its edges.
    """

    cycle: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class GraphCallTookLong(Event):
    """A call of a lane has run for 5, 10, 20 ... seconds, and still does."""

    operator: str
    lane: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphRebuilt(Event):
    """A pipeline's graph has fresh nodes after one of them broke with `error`, which is
    shortened.
    """

    error: str


class GraphPipeline(Pipeline[ModelT], reserved=False):
    """Has rows pass through a graph whose lanes, batches and bounds all rows share.

    Subclass it, set `model`, write `ready` and `build`:

        class Ingest(GraphPipeline[Document]):
            model = Document

            def ready(self) -> ColumnElement[bool]:
                return Document.status == "new"

            def build(self, items: Items[Document]) -> Outcomes:
                return items.amap(self.download, lanes=16).map(parse).amap(self.store, lanes=8)

    An operator that returns an outcome ends its row at once; one that raises fails its row alone,
    which is retried. A call that several rows share may be repeated for them: a replica may die
    after it, so it is to be idempotent.

    `workers_num` is what the graph holds unless it is set, so a row that is claimed has a place in
    it; fewer rows are queued than for other pipelines, since the places are a queue.

    Raises:
        GraphError: `build` made a mistake, or returned another flow.
        ConfigurationError: there is no `build`, or it needs what is not set yet.
        ModelError: as of every `Pipeline`.
        SettingsError: as of every `Pipeline`.
    """

    queue_lower_limit_factor: float = 0.25
    queue_upper_limit_factor: float = 0.5

    def __init__(self, **settings: Unpack[SettingsKeywords]) -> None:
        self._standing: StandingGraph[PipelineItem[ModelT], Outcome | None] = self._built()
        classes: tuple[Any, ...] = type(self).__mro__
        own = classes[: classes.index(GraphPipeline)]
        if "workers_num" not in settings and not any("workers_num" in vars(one) for one in own):
            settings["workers_num"] = min(WORKERS_MAX, self._standing.capacity)
        super().__init__(**settings)

    def build(self, items: Items[ModelT]) -> Outcomes:
        """Return the flow of the outcomes of `items`, one for each; None is ``Apply()``.

        Called when the pipeline is built, and again for fresh nodes after one that broke. What an
        operator returns leaves the graph at once if it is an outcome.
        """
        own = set(dir(type(self))) - set(dir(GraphPipeline))
        meant = [f"; its {one} is never called" for one in get_close_matches("build", own, n=1)]
        text = f"{self.name} must say what its rows pass through: override build(items)"
        raise ConfigurationError(text + "".join(meant))

    async def process(self, item: PipelineItem[ModelT]) -> Outcome | None:
        """Have a row pass through the graph, and return its outcome."""
        return await self._standing.submit(item, keep_going=item.is_trusted)

    @property
    def graph(self) -> Graph:
        """The graph of the present nodes, for pictures: ``pipeline.graph.mermaid()``."""
        return self._standing.graph

    def graph_statistics(self) -> GraphStatistics:
        """Return what the present nodes have done so far: values, lanes, and the bottleneck."""
        return self._standing.statistics()

    def _built(self) -> StandingGraph[PipelineItem[ModelT], Outcome | None]:
        build = cast("Callable[[Flow[PipelineItem[ModelT]]], Flow[Outcome | None]]", self.build)
        try:
            return _GraphOfRows(build, name=self.name)
        except (AttributeError, GraphError, TypeError) as error:
            if isinstance(error, AttributeError) and error.obj is self:
                raise ConfigurationError(
                    f"{self.name}.build() cannot be called yet ({error}): it is called while the"
                    " pipeline is built, so set what it needs before super().__init__()"
                ) from error
            if type(self).__init__ is not GraphPipeline.__init__:
                # An attribute that a class sets to None is there, and not yet what it will be.
                error.add_note(f"{self.name}.build() is called by super().__init__(): {NOT_YET}")
            raise


class _GraphOfRows(StandingGraph[Any, Any]):
    """Emits as events what is logged of other graphs."""

    _leaves = OUTCOMES

    def _deadlocked(self, error: GraphDeadlockError) -> None:
        super()._deadlocked(error)
        emit(GraphDeadlocked(self.name, error.cycle, error.text))

    def _rebuilt(self, error: Exception) -> None:
        super()._rebuilt(error)
        emit(GraphRebuilt(self.name, describe(error)))

    def _call_took_long(self, node: Node, seconds: float) -> None:
        super()._call_took_long(node, seconds)
        emit(GraphCallTookLong(self.name, node.operator, node.lane, seconds))
