"""Flows in a simulation: several replicas with all that can go wrong, then the comparison with one
loop over the steps that were recorded.

The one idea: whatever happened, results, states and timers are those of `reference`. Nothing about
replicas, shards or faults has to be known for that.

    class Metering(FlowScenario):
        def __init__(self, world):
            super().__init__(world, [metering])

        def rows(self):
            return [Reading(meter=f"m{number % 7}", units=number) for number in range(40)]

    def test_metering(seed): simulate(Metering, seed=seed)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, false
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Pipeline, pipeline_hinter
from rowlock.streams.coordinator import CoordinatorPipeline
from rowlock.streams.flow import StreamFlow
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing.streams.recorded import FlowRecord, read_recorded, read_shards
from rowlock.testing.streams.running import flow_pipeline, read_reference

from .at_once import at_once
from .scenario import Scenario, World


class FlowScenario(Scenario):
    """A scenario of flows; `rows` and `services` add events.

    Attributes:
        flows: that run in each replica.
    """

    def __init__(self, world: World, flows: Sequence[StreamFlow[Any]]) -> None:
        """Begin a run.

        Args:
            world: the simulation.
            flows: as the host declares them.
        """
        super().__init__(world)
        self.flows = flows
        programs = [flow.program for flow in flows]
        self.keeps_leases = tuple(dict.fromkeys(one.tables.shard_model for one in programs))

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        """Return new pipelines of each flow: over its shards, and its coordinator."""
        return [
            one
            for flow in self.flows
            for one in (
                flow_pipeline(flow),
                CoordinatorPipeline(flow.program, **flow.pipeline_settings),
            )
        ]

    def unsettled(self, pipeline: Pipeline[Any]) -> ColumnElement[bool]:
        """Return which rows of a pipeline still want something: a coordinator always looks, and
        wants nothing.
        """
        if isinstance(pipeline, CoordinatorPipeline):
            return false()
        return super().unsettled(pipeline)

    def hint(self, pipeline: Pipeline[Any]) -> None:
        """Hint a flow twice: there may be shards to claim, and steps to do."""
        if not isinstance(pipeline, FlowPipeline):
            super().hint(pipeline)
            return
        for topic in (pipeline.program.shards_topic, pipeline.program.topic):
            pipeline_hinter.hint_fetch(topic)

    def looks(self, pipeline: Pipeline[Any]) -> Sequence[float]:
        """Return when a flow last looked around, and how often it was woken, if it holds shards. A
        replica that has its share claims nothing, whatever it is hinted.
        """
        if not isinstance(pipeline, FlowPipeline):
            return super().looks(pipeline)
        wakes = (pipeline.runner.wakes,) if pipeline.runner.shards else ()
        return (pipeline.looked_around_at, *wakes)

    def check(self) -> None:
        """Compare each flow with its reference, as far as all shards have come.

        Raises:
            AssertionError: they differ; the text says in what.
        """
        for flow in self.flows:
            differences = self.differences(flow)
            assert not differences, f"{flow.name}: {'; '.join(differences)}"

    def differences(self, flow: StreamFlow[Any]) -> list[str]:
        """Return in what a flow differs from its reference, in words: results of steps that all
        shards have done, and the states of each shard as of its version.
        """
        records = self.records(flow)
        return [] if records is None else records[0].differences(records[1])

    def records(self, flow: StreamFlow[Any]) -> tuple[FlowRecord, FlowRecord] | None:
        """Return what a flow has come to, and what it must have come to; None as long as no replica
        has created it.
        """
        program = flow.program

        async def read(connection: AsyncConnection) -> tuple[FlowRecord, FlowRecord] | None:
            shards = await read_shards(connection, program)
            if not shards:
                return None
            own = await read_recorded(connection, program, shards)
            versions = {shard.range: shard.version for shard in shards}
            expected = await read_reference(
                connection, program, before=own.next_step, versions=versions
            )
            if len({shard.step for shard in shards}) > 1:
                # Nobody knows of which step a row of the host is.
                expected = replace(expected, rows={})
            return own, expected

        with self.reading() as connection:
            return at_once(connection, read)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that has all that was recorded of the flows, also what has expired
        since, if the scenario has kept it.
        """
        with self.world.reading() as connection:
            yield connection
