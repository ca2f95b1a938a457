"""`Insight`: questions about rows, in any process that can import the host's pipelines.

The one idea: each question is one short transaction that reads and writes nothing, bounded in time
like all transactions of rowlock. No pipeline is started, and none needs to run.

Not here: what is asked (``facts.py``), and what the answers say (``explanation.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from typing import Any, Self, TypeVar

from sqlalchemy import Column, ColumnElement, Table, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.binds import bind_of
from rowlock.database.transaction import in_transaction
from rowlock.insight.checking.checkup import checkup
from rowlock.insight.checking.claim_plan import ClaimPlan, claim_plan, unserved_remarks
from rowlock.insight.checking.finding import Finding
from rowlock.insight.checking.pipeline_view import PipelineView
from rowlock.insight.counting.counts import Counts, counts_of
from rowlock.insight.counting.replicas import LiveReplicas, read_replicas
from rowlock.insight.counting.running import status_of, with_replicas
from rowlock.insight.counting.status import PipelineStatus, Status
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.explanation import (
    Explanation,
    PipelineExplanation,
    SeenLease,
    explanation_without_pipeline,
)
from rowlock.insight.facts import RowAsked, facts_of, pause_of, rules_of
from rowlock.insight.naming import mapped_model, pipeline_named, read_key
from rowlock.insight.observing.observer import Observer
from rowlock.insight.questions import RowQuestion, ask_part, is_of_a_statement
from rowlock.insight.shown import shown
from rowlock.insight.steering.actions import Actions
from rowlock.insight.tables import InsightTables, tables_of
from rowlock.insight.verdicts import Facts, PipelinePause, Refused
from rowlock.pipelines.fetching.claim_builder import claim_parts
from rowlock.pipelines.host_code.hooks import ready_condition
from rowlock.pipelines.host_code.seams import Seams
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.pipeline import Pipeline
from rowlock.rows.eligibility import LockingPipeline
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import compared_column

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InsightLimits:
    """How long questions may take.

    Attributes:
        timeout: the whole of a question.
        statement_timeout: one statement of it, where the database can end one.
        count_timeout: one count, where the database can end one.
    """

    timeout: timedelta = timedelta(seconds=10)
    statement_timeout: timedelta = timedelta(seconds=2)
    count_timeout: timedelta = timedelta(milliseconds=150)


class Insight(Actions):
    """Answers questions about the rows of a host's pipelines.

    Args:
        session_factory: the host's, as for `PipelineManager`.
        pipelines: instances, which need not be registered anywhere.
        tables: the optional tables, where the host has them.
        hide: columns of which no value is shown, such as ``[Volume.secret]``.
        show: columns that are shown beside those which `ready` names, by model.
        redact: makes of each error's text, as it stands in a row, what is shown.
        limits: how long questions may take.

    Raises:
        ConfigurationError: the session factory cannot serve a pipeline, or two have one name.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        pipelines: Iterable[Pipeline[Any]],
        *,
        tables: InsightTables | None = None,
        hide: Iterable[Any] = (),
        show: Mapping[type[Any], Sequence[Any]] | None = None,
        redact: Callable[[str], str] | None = None,
        limits: InsightLimits | None = None,
    ) -> None:
        super().__init__(session_factory, pipelines, tables=tables)
        self.limits = limits or InsightLimits()
        self._hide, self._show, self._redact = tuple(hide), dict(show or {}), redact
        has_pauses = tables is not None and tables.controls is not None
        self._seams = Seams.of([tables.pause_gate] if tables and has_pauses else [], ())
        self._lock_graph = LockGraph(self.pipelines.values())

    @classmethod
    def of(cls, host: PipelineManager | Observer) -> Self:
        """Return one for the pipelines of a manager, or of all managers of an `Observer`, with
        their gates; none need be started.
        """
        managers = host.managers if isinstance(host, Observer) else (host,)
        gates = tuple(dict.fromkeys(gate for manager in managers for gate in manager.gates))
        pipelines = [pipeline for manager in managers for pipeline in manager.pipelines]
        tables = host.tables if isinstance(host, Observer) else tables_of(gates)
        insight = cls(managers[0].session_factory, pipelines, tables=tables)
        insight._seams, insight._gates = Seams.of(gates, ()), gates
        return insight

    def on(self, session_factory: async_sessionmaker[AsyncSession]) -> Insight:
        """Return the same questions to another database, such as a copy that only reads."""
        other = Insight(
            session_factory,
            self.pipelines.values(),
            tables=self.tables,
            hide=self._hide,
            show=self._show,
            redact=self._redact,
            limits=self.limits,
        )
        other._seams, other._gates = self._seams, self._gates
        return other

    async def explain(self, model: type[Any] | str, id: object) -> Explanation:  # noqa: A002
        """Say why a row waits, or who works on it.

        Args:
            model: the mapped class, its name, or the name of its table.
            id: the row's key; text is read by the type of the key.

        Raises:
            AppError: no pipeline of the app knows such a model, or the text is no key of it.
            TransactionTimeout: the database did not answer in time.
        """
        mapped = mapped_model(model, self.pipelines.values())
        concerned = [each for each in self.pipelines.values() if _is_of(each, mapped)]
        if not concerned:
            return explanation_without_pipeline(mapped.__name__, str(id))
        leased = concerned[0].leased
        key = read_key(leased, id)
        asked = [self._asked(each, key) for each in concerned]

        async def ask(
            connection: AsyncConnection, *, apart: bool
        ) -> list[tuple[Facts, str | None]]:
            told = [await facts_of(connection, each, apart=apart) for each in asked]
            # Last: a plan is made under settings that hold to the end of the transaction.
            remarks = await unserved_remarks(connection, asked, apart=apart)
            return list(zip(told, remarks, strict=True))

        replicas = await self.replicas()
        answered = await self._answered(leased, ask)
        found = [with_replicas(facts, replicas) for facts, _ in answered]
        remarks = [() if remark is None else (remark,) for _, remark in answered]
        return Explanation(
            leased.name,
            str(key),
            found[0].at,
            _lease_of(found[0]) if found[0].is_there else None,
            tuple(
                PipelineExplanation.of(self._redacted(facts), remarks=below)
                for facts, below in zip(found, remarks, strict=True)
            ),
        )

    async def replicas(self) -> LiveReplicas:
        """Return the replicas, as they say themselves; none if the host has no table for them.

        Raises:
            TransactionTimeout: the database did not answer in time.
        """
        pipeline = next(iter(self.pipelines.values()), None)
        table = None if self.tables is None else self.tables.replicas
        if pipeline is None or table is None:
            return LiveReplicas(None, None)
        known = await self.read(pipeline.leased, partial(_replicas, table=table))
        return known or LiveReplicas(None, None)

    async def status(self) -> Status:
        """Count what waits for each pipeline, and say who runs it.

        No count reads more than some 10,000 rows, and on PostgreSQL none takes longer than
        `InsightLimits.count_timeout`; what was not counted is None.

        Raises:
            TransactionTimeout: the database did not answer in time.
        """
        replicas = await self.replicas()
        told = [await self._status_of(each, replicas) for each in self.pipelines.values()]
        at = next((one.counts.at for one in told if one.counts.at is not None), replicas.at)
        return Status(self._database(), at, replicas, tuple(told))

    async def check(self) -> tuple[Finding, ...]:
        """Say what is to be mended: columns, indexes, what was left behind, what replicas report.

        Looks at each table in a transaction of its own, which writes and locks nothing. What cannot
        be looked at is a finding.

        Raises:
            TransactionTimeout: the database did not answer in time.
        """
        asked = [self._asked(each, None) for each in self.pipelines.values()]
        replicas = await self.replicas()
        return await checkup(self.read, asked, tables=self.tables, replicas=replicas)

    async def explain_claim(self, pipeline: Pipeline[Any] | str) -> ClaimPlan:
        """Say whether an index serves the claims of a pipeline, and how the database reads it.

        Args:
            pipeline: one of the app's, or its name.

        Raises:
            AppError: the app has none of this name.
            TransactionTimeout: the database did not answer in time.
        """
        named = pipeline if isinstance(pipeline, str) else pipeline.name
        found = pipeline_named(named, self.pipelines.values())
        others = [each for each in self.pipelines.values() if each is not found]
        is_alone = all(each.leased.table is not found.leased.table for each in others)
        ask = partial(claim_plan, asked=self._asked(found, None), is_alone=is_alone)
        return await self.read(found.leased, ask)

    async def explain_pipeline(self, pipeline: Pipeline[Any] | str) -> PipelineView:
        """Say what keeps a pipeline as a whole from working, and whether an index serves it.

        Raises:
            AppError: the app has none of this name.
            TransactionTimeout: the database did not answer in time.
        """
        plan = await self.explain_claim(pipeline)
        replicas = await self.replicas()
        status = await self._status_of(self.pipelines[plan.pipeline], replicas)
        return PipelineView(status, plan)

    async def _status_of(self, pipeline: Pipeline[Any], replicas: LiveReplicas) -> PipelineStatus:
        asked = self._asked(pipeline, None)

        async def ask(connection: AsyncConnection) -> tuple[Counts, PipelinePause | None]:
            counted = await counts_of(
                connection, pipeline.leased, asked.question.parts, owner=pipeline.name
            )
            if self.tables is None:
                return counted, None
            return counted, await pause_of(connection, self.tables, pipeline.name, apart=True)

        counted, pause = await self.read(
            pipeline.leased, ask, statement_timeout=self.limits.count_timeout
        )
        return status_of(pipeline.name, counted, replicas, rules=rules_of(pipeline), pause=pause)

    def _database(self) -> str:
        pipeline = next(iter(self.pipelines.values()), None)
        if pipeline is None:
            return "no pipelines"
        engine = bind_of(self.session_factory(), pipeline.leased).engine
        name = PurePath(engine.url.database or "").name
        host = f"{engine.url.host}/" if engine.url.host else ""
        return shown(f"{engine.dialect.name} {host}{name}")

    async def _answered(self, leased: LeasedTable, ask: Callable[..., Awaitable[T]]) -> T:
        """Return what `ask` gives; asked again, part by part, if the database refuses the whole."""
        try:
            return await self.read(leased, ask, apart=False)
        except Exception as error:
            if not is_of_a_statement(error):
                raise
        return await self.read(leased, ask, apart=True)

    async def read(
        self,
        leased: LeasedTable,
        ask: Callable[..., Awaitable[T]],
        *,
        statement_timeout: timedelta | None = None,
        **how: Any,
    ) -> T:
        """Return what `ask` gives, called with a connection in a transaction that reads."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> T:
            await INSIGHT.of(connection).begin_reading(
                connection, statement_timeout=statement_timeout or self.limits.statement_timeout
            )
            return await ask(connection, **how)

        return await in_transaction(
            self.session_factory,
            leased,
            work,
            purpose="answer a question",
            timeout=self.limits.timeout,
            writes=False,
        )

    def _asked(self, pipeline: Pipeline[Any], key: Any) -> RowAsked:
        leased, failure = pipeline.leased, None
        ready: ColumnElement[bool] = true()
        locking: tuple[LockingPipeline, ...] = ()
        try:
            ready = ready_condition(pipeline.name, leased, pipeline)
            locking = self._lock_graph.locking_pipelines_of(leased, but=pipeline.name)
        # A host's code may raise anything; that is the answer.
        except Exception as error:  # noqa: BLE001
            failure = error
        gates = self._seams.conditions(leased, pipeline.name)
        question = RowQuestion(
            leased,
            key,
            pipeline.name,
            claim_parts(pipeline, ready=ready, locking_pipelines=locking, gates=gates),
            locking,
            self._columns(leased, self._hide),
            tuple(self._columns(leased, self._show.get(pipeline.model, ()))),
            bind_of(self.session_factory(), leased).dialect,
        )
        names = tuple(getattr(gate, "__qualname__", repr(gate)) for gate in self._seams.gates)
        rivals = {name: rules_of(each) for name, each in self.pipelines.items()}
        return RowAsked(pipeline, question, names, rivals, self.tables, failure)

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


async def _replicas(connection: AsyncConnection, table: Table) -> LiveReplicas | None:
    # A migration that was not run costs the names of replicas, and nothing else.
    found = await ask_part(connection, partial(read_replicas, connection, table), apart=True)
    return None if isinstance(found, Refused) else found


def _is_of(pipeline: Pipeline[Any], model: type[Any]) -> bool:
    return issubclass(pipeline.model, model) or issubclass(model, pipeline.model)


def _lease_of(facts: Facts) -> SeenLease:
    owner, token = facts.column("lock_owner"), facts.column("lock_token")
    ended_s = facts.since("lock_expires_at")
    return SeenLease(
        owner,
        None if token is None else str(token),
        None if ended_s is None else -ended_s,
    )
