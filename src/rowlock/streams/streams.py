"""The streams of a host: logs and flows over them, their tables and their pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack

from rowlock import Pipeline
from rowlock.errors import ConfigurationError
from rowlock.streams.computing.hashing import Key
from rowlock.streams.consumers import OutputSource
from rowlock.streams.coordinator import CoordinatorPipeline
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.streams.inputs.event_log import KEEP_DEFAULT, EventLog
from rowlock.streams.inputs.source import Source
from rowlock.streams.inputs.table_source import event_table
from rowlock.streams.outputs import Output
from rowlock.streams.program import FlowProgram, check_name, check_version
from rowlock.streams.settings import FlowKeywords, flow_settings
from rowlock.streams.shards.layout import DynamicShards, check_number
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.tables import StreamTables

E = TypeVar("E")

EVERY_STEP = Checkpoint()
SHARDS_DEFAULT = 16
"""Shards of a flow that declares no number of them."""


class Streams:
    """The streams of a host.

        streams = Streams(Base)
        clicks = streams.log("clicks", Click, key=attrgetter("page"))
        balances = streams.flow("balances", Payment)

    Args:
        base: the host's declarative base; the tables of the wing join its metadata.
    """

    def __init__(self, base: type[Any]) -> None:
        self.tables = StreamTables.of(base)
        self.flows: dict[str, StreamFlow[Any]] = {}
        self.logs: dict[str, EventLog[Any]] = {}
        self._base = base

    def __repr__(self) -> str:
        return f"<Streams, flows {', '.join(self.flows) or 'none'}>"

    def log(
        self,
        name: str,
        type: type[E],  # noqa: A002
        *,
        key: Callable[[E], Key],
        keep: timedelta = KEEP_DEFAULT,
    ) -> EventLog[E]:
        """Declare a log of events, for facts that have no table of their own.

        Args:
            name: its own: events belong to it.
            type: of the events, such as a dataclass.
            key: returns the key of an event: a text, a whole number, a UUID, a date or a time.
            keep: how long events are kept at least, and numbers of producers, so for how long an
                append may be repeated.

        Raises:
            ConfigurationError: the name is taken or none, `key` is no function, or `keep` is
                no timedelta or negative.
            TypeError: values of this type cannot be stored.
        """
        check_name(name, "a log")
        if name in self.logs:
            raise ConfigurationError(f"there is a log {name!r} already")
        log = self.logs[name] = EventLog(name, type, key=key, keep=keep, tables=self.tables)
        return log

    def flow(
        self,
        name: str,
        *sources: Source[E] | Output[E] | type[E],
        shards: int | DynamicShards = SHARDS_DEFAULT,
        checkpoint: Checkpoint = EVERY_STEP,
        start: Literal["first", "now"] = "first",
        version: str = "",
        **settings: Unpack[FlowKeywords],
    ) -> StreamFlow[E]:
        """Declare a computation over `sources`; its handler is registered with the flow.

        Args:
            name: its own: states, results and progress belong to it. Another name begins anew.
            sources: what it reads: mapped classes, table sources, logs, outputs of other flows. If
                their events have several types, annotate the flow: ``StreamFlow[Payment | Fee]``.
            shards: into how many parts its keys are divided; a power of two.
            checkpoint: how often states are written; with every step by default.
            start: a new flow begins with the first row of its sources, or with what comes now.
            version: of the host's code, to be shown beside each replica.
            settings: `FlowSettings`, and those of every pipeline (`PipelineSettings`).

        Raises:
            ConfigurationError: the name is taken or none, or so is a source, `checkpoint` or
                `version`.
            SettingsError: a setting is out of bounds.
            ValueError: the number of shards is no power of two.
            TypeError: it is no number.
            ModelError: a class is no stream; the text says what to change.
        """
        check_name(name, "a flow")
        if name in self.flows:
            raise ConfigurationError(f"there is a flow {name!r} already")
        if start not in ("first", "now"):
            msg = f"the flow {name!r} starts with 'first' or 'now', not {start!r}"
            raise ConfigurationError(msg)
        check_version(name, version)
        _check_checkpoint(name, checkpoint)
        if not isinstance(shards, DynamicShards):
            check_number(shards)
        own, rest = flow_settings(name, settings)
        declared = FlowProgram(
            name,
            version,
            _sources_of(name, sources, self.tables),
            stages=(),
            exchanges=(),
            outputs={},
            shards=shards,
            checkpoint=checkpoint,
            from_now=start == "now",
            settings=own,
            tables=self.tables,
        )
        flow: StreamFlow[E] = StreamFlow(declared, rest)
        self.flows[name] = flow
        return flow

    def pipelines(self, *flows: StreamFlow[Any]) -> list[Pipeline[Any]]:
        """Return new pipelines that work on `flows`, all by default, for a `PipelineManager`: of
        each flow one over its shards, and its coordinator.

        Raises:
            ConfigurationError: a flow has no handler, or is none of these streams.
            SettingsError: a setting of a pipeline is out of bounds.
        """
        chosen = flows or tuple(self.flows.values())
        for flow in chosen:
            if self.flows.get(getattr(flow, "name", ""), self) is not flow:
                raise ConfigurationError(
                    f"{getattr(flow, 'name', flow)!r:.100} is no flow of these streams: pass what"
                    " `flow(...)` has returned, each as an argument of its own"
                )
        return [
            made(flow.program, **flow.pipeline_settings)
            for flow in chosen
            for made in (FlowPipeline, CoordinatorPipeline)
        ]


def _check_checkpoint(flow: str, given: object) -> None:
    if not isinstance(given, Checkpoint):
        steps = given if isinstance(given, int) else "..."
        raise ConfigurationError(
            f"the flow {flow!r} has checkpoint={given!r:.100}: write Checkpoint(steps={steps})"
        )


def _sources_of(flow: str, sources: Sequence[Any], tables: StreamTables) -> dict[str, Source[Any]]:
    found: dict[str, Source[Any]] = {}
    for source in (_source_of(one, tables) for one in sources):
        if source.name in found:
            raise ConfigurationError(f"two sources of the flow {flow!r} are named {source.name!r}")
        found[source.name] = source
    return found


def _source_of(source: Any, tables: StreamTables) -> Source[Any]:
    if isinstance(source, Source):
        return source
    if isinstance(source, Output):
        return _output_source(source, tables)
    if isinstance(source, type):
        return event_table(source)
    raise ConfigurationError(f"{source!r:.100} is no source of a flow")


def _output_source(output: Output[Any], tables: StreamTables) -> OutputSource[Any]:
    name = f"{output.flow}/{output.name}"
    if not output.is_kept:
        raise ConfigurationError(
            f"results of {name} are rows of the host, and are not kept by step: read their table as"
            " a stream (EventColumns, or TableSource)"
        )
    if output.tables is not tables:
        raise ConfigurationError(
            f"{name} is an output of other streams: a flow and what it reads are in one metadata"
        )
    return OutputSource(output, output.waits)
