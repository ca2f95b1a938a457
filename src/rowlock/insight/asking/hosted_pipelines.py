"""The pipelines of an app, each with the sessions and the gates of its own manager.

The one idea: a process may have several managers, and several databases. What concerns a pipeline
is asked, and written, where its manager works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.database.binds import bind_of, check_session_factory
from rowlock.errors import ConfigurationError
from rowlock.insight.tables import InsightTables
from rowlock.pipelines.host_code.seams import Gate
from rowlock.pipelines.pipeline import Pipeline
from rowlock.rows.leased_table import LeasedTable

Sessions: TypeAlias = async_sessionmaker[AsyncSession]


@dataclass(frozen=True, slots=True)
class PipelineHost:
    """What a manager gives to one of its pipelines.

    Attributes:
        session_factory: leads to its database.
        gates: of its claims; None if that is not known.
    """

    session_factory: Sessions
    gates: tuple[Gate, ...] | None = None


class HostedPipelines:
    """The pipelines of an app.

    Args:
        session_factory: the host's.
        pipelines: those of the app; none needs to run.
        tables: the optional tables, where the host has them.
        gates: of the manager; None if that is not known here.

    Raises:
        ConfigurationError: the session factory cannot serve a pipeline, or two have one name.
    """

    def __init__(
        self,
        session_factory: Sessions,
        pipelines: Iterable[Pipeline[Any]],
        *,
        tables: InsightTables | None = None,
        gates: Iterable[Gate] | None = None,
    ) -> None:
        self.session_factory = session_factory
        self.pipelines: dict[str, Pipeline[Any]] = {}
        self.tables = tables
        self._hosts: dict[str, PipelineHost] = {}
        self._engines: dict[str, Engine] = {}
        known = None if gates is None else tuple(gates)
        self.add(PipelineHost(session_factory, known), pipelines)

    def add(self, host: PipelineHost, pipelines: Iterable[Pipeline[Any]]) -> None:
        """Take in the pipelines of one more manager.

        Raises:
            ConfigurationError: as for the first ones.
        """
        for pipeline in pipelines:
            if pipeline.name in self.pipelines:
                raise ConfigurationError(f"two pipelines are named {pipeline.name}; rename one")
            check_session_factory(host.session_factory, pipeline.leased)
            self.pipelines[pipeline.name] = pipeline
            self._hosts[pipeline.name] = host
            self._engines[pipeline.name] = engine_of(host.session_factory, pipeline)

    def host_of(self, pipeline: Pipeline[Any]) -> PipelineHost:
        """Return what its manager gives to a pipeline."""
        return self._hosts[pipeline.name]

    def sessions_of(self, leased: LeasedTable) -> Sessions:
        """Return the sessions of the first pipeline that works on a table, or else the host's."""
        for pipeline in self.pipelines.values():
            if pipeline.leased.table is leased.table:
                return self.host_of(pipeline).session_factory
        return self.session_factory

    def by_database(
        self, pipelines: Iterable[Pipeline[Any]] | None = None
    ) -> Iterator[tuple[Sessions, list[Pipeline[Any]]]]:
        """Yield the pipelines of each database together, with sessions that lead there."""
        return by_database(
            (self.host_of(one).session_factory, one, self._engines[one.name])
            for one in (self.pipelines.values() if pipelines is None else pipelines)
        )


def by_database(
    pipelines: Iterable[tuple[Sessions, Pipeline[Any], Engine]],
) -> Iterator[tuple[Sessions, list[Pipeline[Any]]]]:
    """Yield the pipelines of each engine together, with sessions that lead there."""
    found: dict[int, tuple[Sessions, list[Pipeline[Any]]]] = {}
    for sessions, pipeline, engine in pipelines:
        found.setdefault(id(engine), (sessions, []))[1].append(pipeline)
    yield from found.values()


def engine_of(sessions: Sessions, pipeline: Pipeline[Any]) -> Engine:
    """Return the engine of the database in which a pipeline works."""
    return bind_of(sessions(), pipeline.leased).engine
