"""How a question reaches the rows of a pipeline, or all databases of an app: in short transactions
that read, with what the host lends and hides, and in the fewest ways to the database.

Not here: the questions (``insight.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, Table, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Pipeline
from rowlock.errors import ConfigurationError, OutcomeError
from rowlock.insight.actions import Actions
from rowlock.insight.counting import Waiting, waiting_of
from rowlock.insight.databases import (
    Ask,
    AwayDatabase,
    DatabaseAnswers,
    DatabaseAsks,
    QuestionPlaces,
    asked_by_database,
    question_time,
    time_left,
)
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.facts import RowAsked, rules_of
from rowlock.insight.naming import database_name
from rowlock.insight.questions import RowQuestion, is_of_a_statement, refusal_of, whole_else_apart
from rowlock.insight.replicas import LiveReplicas, merged_replicas, read_replicas
from rowlock.insight.tables import PipelineHost, Sessions, engine_of
from rowlock.insight.verdicts import Facts
from rowlock.rows.updates import compared_column
from rowlock.spi import (
    Gate,
    LeasedTable,
    LockGraph,
    LockingPipeline,
    Seams,
    bind_of,
    claim_parts,
    in_transaction,
    is_transient,
    ready_condition,
)

Read = Callable[..., Awaitable[Any]]
"""Runs a question in a transaction that reads, on one database."""


async def waiting_asked(read: Read, asked: RowAsked) -> Waiting:
    ask = partial(read, partial(waiting_of, asked=asked))
    waiting: Waiting
    if asked.failure is not None:
        waiting = await ask(apart=True)
    else:
        waiting = await whole_else_apart(ask)
    return waiting


async def replicas_asked(read: Read, table: Table) -> LiveReplicas:
    """Ask which replicas live; a migration that was not run costs their names, and nothing else."""
    try:
        found: LiveReplicas = await read(partial(read_replicas, table=table))
    except Exception as error:
        if not is_of_a_statement(error):
            raise
        return LiveReplicas(None, None, why=refusal_of(error))
    return found


T = TypeVar("T")

PART_SHARE: Final = 4
"""Parts of a question that took too long have this fraction of its time each."""


@dataclass(frozen=True, slots=True)
class InsightLimits:
    """How long questions may take.

    Attributes:
        timeout: the whole of a question, and before it the wait until fewer are asked.
        statement_timeout: one statement of it, where the database can end one.
        count_timeout: one count, where the database can end one.
    """

    timeout: timedelta = timedelta(seconds=10)
    statement_timeout: timedelta = timedelta(seconds=2)
    count_timeout: timedelta = timedelta(milliseconds=150)


def part_timeout(limits: InsightLimits, refused: Exception) -> timedelta:
    """Return how long each part may take of a question that was refused as a whole."""
    # What took too long stands in several parts, and all of them have to fit into one page.
    return limits.statement_timeout / (PART_SHARE if is_transient(refused) else 1)


class Questioner(Actions):
    limits: InsightLimits
    _places: QuestionPlaces
    _hide: tuple[Any, ...]
    _show: dict[type[Any], Sequence[Any]]
    _redact: Callable[[str], str] | None

    async def read(
        self,
        leased: LeasedTable,
        ask: Callable[..., Awaitable[T]],
        *,
        sessions: Sessions | None = None,
        statement_timeout: timedelta | None = None,
        **how: Any,
    ) -> T:
        """Return the answer of `ask(connection, **how)`, in a transaction that reads.

        `sessions` lead to the database, by default where `leased` is worked on.
        """
        return await self.read_by_session(
            leased,
            lambda _, connection: ask(connection, **how),
            sessions=sessions,
            statement_timeout=statement_timeout,
        )

    async def read_by_session(
        self,
        leased: LeasedTable,
        ask: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        sessions: Sessions | None = None,
        statement_timeout: timedelta | None = None,
    ) -> T:
        """Return the answer of `ask(session, connection)`, as `read` does."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> T:
            each = time_left(statement_timeout or self.limits.statement_timeout)
            await INSIGHT.of(connection).begin_reading(connection, statement_timeout=each)
            return await ask(session, connection)

        there = sessions or self.sessions_of(leased)
        engine = bind_of(there(), leased).engine
        async with self._places.taken(engine, within=question_time(self.limits.timeout)):
            return await in_transaction(
                there,
                leased,
                work,
                purpose="answer a question",
                timeout=question_time(self.limits.timeout),
                writes=False,
            )

    def _asked(self, pipeline: Pipeline[Any], key: Any) -> RowAsked:
        leased, failure = pipeline.leased, None
        ready: ColumnElement[bool] = true()
        locking: tuple[LockingPipeline, ...] = ()
        try:
            # A pipeline may want rows only in some replicas, of which this process is none.
            hooks: Any = SimpleNamespace(ready=getattr(pipeline, "ready_anywhere", pipeline.ready))
            ready = ready_condition(pipeline.name, leased, hooks)
            beside = LockGraph(self._beside(pipeline))
            locking = beside.locking_pipelines_of(leased, but=pipeline.name)
        # A host's code may raise anything; that is the answer.
        except Exception as error:  # noqa: BLE001
            failure = error
        host = self.host_of(pipeline)
        seams = Seams.of(self._gates_of(host), ())
        gates = seams.conditions(leased, pipeline.name)
        question = RowQuestion(
            leased,
            key,
            pipeline.name,
            claim_parts(pipeline, ready=ready, locking_pipelines=locking, gates=gates),
            locking,
            self._columns(leased, self._hide),
            tuple(self._columns(leased, self._show.get(pipeline.model, ()))),
            bind_of(host.session_factory(), leased).dialect,
        )
        names = tuple(getattr(gate, "__qualname__", repr(gate)) for gate in seams.gates)
        rivals = {name: rules_of(each) for name, each in self.pipelines.items()}
        return RowAsked(pipeline, question, names, rivals, self.tables, failure)

    def _beside(self, pipeline: Pipeline[Any]) -> Iterable[Pipeline[Any]]:
        return next(group for _, group in self.by_database() if pipeline in group)

    def _gates_of(self, host: PipelineHost) -> tuple[Gate, ...]:
        if host.gates is not None:
            return host.gates
        tables = self.tables
        return () if tables is None or tables.controls is None else (tables.pause_gate,)

    def _check_columns(self) -> None:
        for pipeline in self.pipelines.values():
            for option, given in (
                ("hide", self._hide),
                ("show", self._show.get(pipeline.model, ())),
            ):
                try:
                    self._columns(pipeline.leased, given)
                except OutcomeError as error:
                    raise ConfigurationError(f"{option}=: {error}") from error

    def _columns(self, leased: LeasedTable, given: Iterable[Any]) -> frozenset[Column[Any]]:
        return frozenset(
            compared_column(leased, each)
            for each in given
            if isinstance(each, str) or getattr(each, "class_", leased.model) is leased.model
        )

    def _redacted(self, facts: Facts) -> Facts:
        error = facts.column("last_error")
        if self._redact is None or error is None:
            return facts
        return replace(facts, columns={**facts.columns, "last_error": self._redact(str(error))})


AsksOfDatabase: TypeAlias = Callable[[Sessions, Sequence[Pipeline[Any]]], Sequence[Ask]]
"""Makes the questions to one database, of the pipelines that work there."""


class DatabaseQuestions(Questioner):
    async def asked_everywhere(
        self, asks: AsksOfDatabase, pipelines: Iterable[Pipeline[Any]] | None = None
    ) -> list[DatabaseAnswers]:
        """Return the answers of each database, in the order of `by_database`."""
        return await asked_by_database(
            [
                DatabaseAsks(
                    engine_of(sessions, group[0]),
                    tuple(one.name for one in group),
                    asks(sessions, group),
                )
                for sessions, group in self.by_database(pipelines)
            ]
        )

    async def asked_beside_replicas(
        self, asks: AsksOfDatabase
    ) -> tuple[LiveReplicas, list[DatabaseAnswers]]:
        def with_replicas(sessions: Sessions, pipelines: Sequence[Pipeline[Any]]) -> list[Ask]:
            return [
                partial(self._replicas_known, sessions, pipelines[0]),
                *asks(sessions, pipelines),
            ]

        answers = await self.asked_everywhere(with_replicas)
        away = [one for one in answers if isinstance(one, AwayDatabase)]
        told = [one[0] for one in answers if not isinstance(one, AwayDatabase)]
        replicas = merged_replicas(told, away)
        return replicas, [one if isinstance(one, AwayDatabase) else one[1:] for one in answers]

    async def _replicas_known(self, sessions: Sessions, pipeline: Pipeline[Any]) -> LiveReplicas:
        table = None if self.tables is None else self.tables.replicas
        if table is None:
            return LiveReplicas(None, None)
        read: Read = partial(self.read, pipeline.leased, sessions=sessions)
        found = await replicas_asked(read, table)
        if found.why and len(list(self.by_database())) > 1:
            name = database_name(engine_of(sessions, pipeline))
            return replace(found, why=f"{name}: {found.why}")
        return found
