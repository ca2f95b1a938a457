"""`Insight`: questions about rows, in any process that can import the host's pipelines.

The one idea: each question is one short transaction that reads and writes nothing, bounded in time
like all transactions of rowlock. No pipeline is started, and none needs to run.

Not here: what is asked (``questions.py``), and what the answers say (``explanation.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, Self, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import Pipeline, PipelineManager
from rowlock.clock import monotonic
from rowlock.errors import AppError, ConfigurationError, OutcomeError
from rowlock.insight.actions import Actions
from rowlock.insight.asking import (
    Ask,
    AwayDatabase,
    DatabaseAnswers,
    DatabaseAsks,
    PipelineHost,
    QuestionPlaces,
    Sessions,
    asked_by_database,
    asked_concurrently,
    database_name,
    engine_of,
    is_of_a_statement,
    raise_if_away,
    refusal_of,
    time_left,
    whole_else_apart,
)
from rowlock.insight.checkup import beside_tables, not_looked_at, table_checks
from rowlock.insight.claim_plan import ClaimPlan, PipelineView, claim_plan, unserved_remark
from rowlock.insight.explanation import (
    Explanation,
    PipelineExplanation,
    SeenLease,
    explanation_without_pipeline,
    with_replicas,
)
from rowlock.insight.findings import Finding, Findings, in_order
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.listing import (
    ENTRIES_MAX,
    PAGE_ROWS,
    RowPage,
    Timeline,
    page_read,
    read_timeline,
    state_question,
)
from rowlock.insight.observer import Observer
from rowlock.insight.questions import RowAsked, RowQuestion, facts_of, large_rows, rules_of, seen_by
from rowlock.insight.rehearsal import IDS_MAX, PipelineRehearsal, Rehearsal
from rowlock.insight.replicas import LiveReplicas, merged_replicas, read_replicas
from rowlock.insight.shown import read_key
from rowlock.insight.status import PipelineStatus, Status, status_of, waiting_of
from rowlock.insight.tables import InsightTables, tables_of
from rowlock.insight.verdicts import Facts
from rowlock.spi import (
    LeasedTable,
    LockGraph,
    LockingPipeline,
    Seams,
    bind_of,
    claim_parts,
    compared_column,
    in_transaction,
    is_transient,
    ready_condition,
)

T = TypeVar("T")
AsksOfDatabase: TypeAlias = Callable[[Sessions, Sequence[Pipeline[Any]]], Sequence[Ask]]
"""Makes the questions to one database, of the pipelines that work there."""

PART_SHARE: Final = 4  # parts of a question that took too long have this fraction of its time each


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
        AppError: a question names a pipeline, a model or a key that the app does not have.
        TransactionTimeout: the database, or none of several, answered a question in time.
        ConfigurationError: the session factory cannot serve a pipeline, two have one name, or a
            model lacks a column that is to be hidden or shown.
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
        self.limits, self._places = limits or InsightLimits(), QuestionPlaces()
        self._hide, self._show = tuple(hide), dict(show or {})
        self._redact = redact and _contained(redact)
        for pipeline in self.pipelines.values():
            shown = self._show.get(pipeline.model, ())
            for option, given in (("hide", self._hide), ("show", shown)):
                try:
                    self._columns(pipeline.leased, given)
                except OutcomeError as error:
                    raise ConfigurationError(f"{option}=: {error}") from error

    @classmethod
    def of(cls, host: PipelineManager | Observer) -> Self:
        """Return one for the pipelines of a manager, or of all managers of an `Observer`, with
        their gates; none need be started.
        """
        managers = host.managers if isinstance(host, Observer) else (host,)
        gates = (gate for manager in managers for gate in manager.gates)
        tables = host.tables if isinstance(host, Observer) else tables_of(gates)
        insight = cls(managers[0].session_factory, (), tables=tables)
        for manager in managers:
            insight.add(PipelineHost(manager.session_factory, manager.gates), manager.pipelines)
        return insight

    def on(self, session_factory: async_sessionmaker[AsyncSession]) -> Insight:
        """Return the same questions to another database, such as a copy that only reads."""
        other = Insight(
            session_factory,
            (),
            tables=self.tables,
            hide=self._hide,
            show=self._show,
            redact=self._redact,
            limits=self.limits,
        )
        for pipeline in self.pipelines.values():
            other.add(PipelineHost(session_factory, self.host_of(pipeline).gates), [pipeline])
        return other

    async def explain(self, model: type[Any] | str, id: object) -> Explanation:  # noqa: A002
        """Say why a row waits, or who works on it.

        Args:
            model: the mapped class, its name, or the name of its table.
            id: the row's key; text is read by the type of the key.
        """
        mapped = self.model(model)
        concerned = [each for each in self.pipelines.values() if _is_of(each, mapped)]
        if not concerned:
            return explanation_without_pipeline(mapped.__name__, str(id))
        leased = concerned[0].leased
        key = read_key(leased, id)

        def asks(sessions: Sessions, pipelines: Sequence[Pipeline[Any]]) -> list[Ask]:
            return [partial(self._answered, sessions, [self._asked(one, key) for one in pipelines])]

        replicas, answers = await asked_concurrently(
            [self.replicas, partial(self._asked_everywhere, asks, concerned)]
        )
        away = _away(answers)
        found = [
            (with_replicas(facts, replicas), [remark] if remark else [])
            for told in answers
            if not isinstance(told, AwayDatabase)
            for facts, remark in told[0]
        ]
        there = next((facts for facts, _ in found if facts.is_there), None)
        if there is None:
            # The row may be in a database that is away.
            raise_if_away(away)
        return Explanation(
            leased.name,
            str(key),
            found[0][0].at,
            None if there is None else SeenLease.of(there),
            tuple(
                PipelineExplanation.of(self._redacted(facts), remarks=remarks)
                for facts, remarks in found
            ),
            away,
        )

    async def rehearse(self, pipeline: str, ids: Iterable[object]) -> Rehearsal:
        """Run `process` for rows, and say what would come of each; nothing is written.

        The rows are held meanwhile as ``plan:...``. `process` finds ``item.is_rehearsal`` true, and
        its sessions only read; what it does to other systems is done.

        Args:
            pipeline: its name.
            ids: keys of rows, at most 100; text is read by the type of the key.

        Raises:
            AppError: there are too many.
            ConfigurationError: the pipeline does not say ``rehearsable = True``.
            LockWaitTimeout: one of the rows is locked.
            LeaseLost: a row was not held until its rehearsal ended.
        """
        found = self.pipeline(pipeline)
        keys = [read_key(found.leased, one) for one in ids]
        if not 1 <= len(keys) <= IDS_MAX:
            raise AppError(f"1 to {IDS_MAX} rows are rehearsed at once, not {len(keys)}")
        hidden = self._columns(found.leased, self._hide)
        sessions = self.host_of(found).session_factory
        rehearsal = PipelineRehearsal(sessions, found, hidden=hidden, redact=self._redact or str)
        return Rehearsal(found.name, found.leased.name, await rehearsal.rehearse(keys))

    async def timeline(self, model: type[Any] | str, id: object, *, limit: int = 100) -> Timeline:  # noqa: A002
        """Say what happened to a row, as far as the host keeps a history; a row that was deleted
        has one, too.

        Args:
            model: the mapped class, its name, or the name of its table.
            id: the row's key; text is read by the type of the key.
            limit: most entries, the newest.

        Raises:
            AppError: the limit is none.
        """
        if not (isinstance(limit, int) and 1 <= limit <= ENTRIES_MAX):
            raise AppError(f"the limit of a timeline is 1 to {ENTRIES_MAX:,}, not {limit!r:.20}")
        leased, key = self.row(model, id)
        history = None if self.tables is None else self.tables.history
        names = [one.name for one in self.pipelines.values() if _is_of(one, leased.model)]
        ask = partial(
            read_timeline, history=history, leased=leased, key=key, pipelines=names, limit=limit
        )
        found: Timeline
        found, replicas = await asked_concurrently([partial(self.read, leased, ask), self.replicas])
        return found.presented(replicas.names, self._redact or str)

    async def replicas(self) -> LiveReplicas:
        """Return the replicas, as they say themselves; none if the host has no table for them. Of
        several databases one that is away stands in `LiveReplicas.away`.
        """
        if self.tables is None or self.tables.replicas is None:
            return LiveReplicas(None, None)
        replicas, _ = await self._asked_beside_replicas(lambda sessions, pipelines: ())
        return replicas

    async def status(self, *, within: timedelta | None = None) -> Status:
        """Count what waits for each pipeline, and say who runs it.

        No count reads more than some 10,000 rows, and on PostgreSQL none takes longer than
        `InsightLimits.count_timeout`; what was not counted is None.

        Args:
            within: after that long no further pipeline is asked, and of the others the answer says
                that they were not; None: all are asked. A few are asked at once.
        """
        ends = None if within is None else monotonic() + within.total_seconds()

        async def in_time(pipeline: Pipeline[Any]) -> PipelineStatus | None:
            has_time = ends is None or monotonic() < ends
            return await self._waiting_of(pipeline) if has_time else None

        replicas, answers = await self._asked_beside_replicas(
            lambda sessions, pipelines: [partial(in_time, each) for each in pipelines]
        )
        waiting: dict[str, Any] = {}
        databases = list(self.by_database())
        for (_, pipelines), told in zip(databases, answers, strict=True):
            each = [told] * len(pipelines) if isinstance(told, AwayDatabase) else told
            waiting |= zip([one.name for one in pipelines], each, strict=True)
        lines = [status_of(name, waiting[name], replicas) for name in self.pipelines]
        at = next((one.counts.at for one in lines if one.counts.at is not None), replicas.at)
        engines = [engine_of(sessions, group[0]) for sessions, group in databases]
        where = ", ".join(map(database_name, engines)) or "no pipelines"
        return Status(where, at, replicas, tuple(lines), _away(answers))

    async def rows(
        self, pipeline: str, state: str, *, after: str | None = None, limit: int = PAGE_ROWS
    ) -> RowPage:
        """Return rows of one state, a page of them.

        Args:
            pipeline: its name.
            state: ``due``, ``resting``, ``leased``, ``ended``, ``failing`` or ``parked``.
            after: `RowPage.next` of the page before; None for the first page.
            limit: how many rows at most, 1 to `PAGE_ROWS_MAX`.

        Raises:
            AppError: there is no such state, or no page ends in `after`.
        """
        found = self.pipeline(pipeline)
        asked = self._asked(found, None)
        question = state_question(asked, state, after=after, limit=limit)
        redacted = self._redact or str
        ask = partial(page_read, asked=asked, question=question, redacted=redacted)
        sessions = self.host_of(found).session_factory
        page: RowPage
        page, replicas = await asked_concurrently(
            [partial(self.read, found.leased, ask, sessions=sessions), self.replicas]
        )
        return replace(page, names=replicas.names)

    async def status_of(self, pipeline: str) -> PipelineStatus:
        """Count what waits for one pipeline, as `status` does for all."""
        found = self.pipeline(pipeline)
        replicas, waiting = await asked_concurrently(
            [self.replicas, partial(self._waiting_of, found)]
        )
        return status_of(found.name, waiting, replicas)

    async def check(self) -> tuple[Finding, ...]:
        """Say what is to be mended: columns, indexes, what was left behind, what replicas report.

        Looks at each table in a transaction of its own, which writes and locks nothing. What cannot
        be looked at is a finding.
        """
        replicas, answers = await self._asked_beside_replicas(
            lambda sessions, pipelines: table_checks(
                partial(self.read, sessions=sessions),
                [self._asked(each, None) for each in pipelines],
                tuple(self.pipelines),
            )
        )
        found = [
            [not_looked_at(told)] if isinstance(told, AwayDatabase) else chain(*told)
            for told in answers
        ]
        return in_order([*chain(*found), *beside_tables(self.tables, replicas)])

    async def findings(self) -> Findings:
        """Return what `check` says, as one answer."""
        return Findings(await self.check(), len(self.pipelines))

    async def explain_claim(self, pipeline: Pipeline[Any] | str) -> ClaimPlan:
        """Say whether an index serves the claims of a pipeline, and how the database reads it.

        Args:
            pipeline: one of the app's, or its name.
        """
        found = self.pipeline(pipeline)
        others = [each for each in self.pipelines.values() if each is not found]
        is_alone = all(each.leased.table is not found.leased.table for each in others)
        ask = partial(claim_plan, asked=self._asked(found, None), is_alone=is_alone)
        return await self.read(found.leased, ask, sessions=self.host_of(found).session_factory)

    async def explain_pipeline(self, pipeline: Pipeline[Any] | str) -> PipelineView:
        """Say what keeps a pipeline as a whole from working, and whether an index serves it."""
        found = self.pipeline(pipeline)
        plan, replicas, waiting = await asked_concurrently(
            [partial(self.explain_claim, found), self.replicas, partial(self._waiting_of, found)]
        )
        return PipelineView(status_of(found.name, waiting, replicas), plan)

    async def _waiting_of(self, pipeline: Pipeline[Any]) -> PipelineStatus:
        asked = self._asked(pipeline, None)
        read = partial(
            self.read,
            pipeline.leased,
            partial(waiting_of, asked=asked),
            sessions=self.host_of(pipeline).session_factory,
            statement_timeout=self.limits.count_timeout,
        )
        has_failed = asked.failure is not None
        found: PipelineStatus = await (read(apart=True) if has_failed else whole_else_apart(read))
        return found

    async def _answered(
        self, sessions: Sessions, asked: Sequence[RowAsked]
    ) -> list[tuple[Facts, str | None]]:
        """Return the facts, and a remark below them; part by part, if the database refuses the
        whole.
        """

        async def ask(
            connection: AsyncConnection, *, session: AsyncSession, apart: bool
        ) -> list[tuple[Facts, str | None]]:
            each_seen = [await seen_by(session, each) for each in asked]
            told = [await facts_of(connection, each, apart=apart) for each in each_seen]
            # Last: a plan is made under settings that hold to the end of the transaction.
            most = await large_rows(connection, leased.table, apart=apart)
            if most is None:
                return [(facts, None) for facts in told]
            return [
                (facts, await unserved_remark(connection, each, more_than=most))
                for facts, each in zip(told, each_seen, strict=True)
            ]

        def part_timeout(refused: Exception) -> timedelta:
            # What took too long stands in several parts, and all of them have to fit into one page.
            return self.limits.statement_timeout / (PART_SHARE if is_transient(refused) else 1)

        leased = asked[0].question.leased
        read = partial(self.read, leased, ask, sessions=sessions, with_session=True)
        return await whole_else_apart(read, part_timeout=part_timeout)

    # ------------------------------------------------------------ how they are asked

    async def read(
        self,
        leased: LeasedTable,
        ask: Callable[..., Awaitable[T]],
        *,
        sessions: Sessions | None = None,
        statement_timeout: timedelta | None = None,
        with_session: bool = False,
        **how: Any,
    ) -> T:
        """Return the answer of `ask(connection, **how)`, in a transaction that reads, on the
        database of `sessions`, by default where `leased` is worked on.
        """

        async def work(session: AsyncSession, connection: AsyncConnection) -> T:
            each = time_left(statement_timeout or self.limits.statement_timeout)
            await INSIGHT.of(connection).begin_reading(connection, statement_timeout=each)
            return await ask(connection, **how, **({"session": session} if with_session else {}))

        there = sessions or self.sessions_of(leased)
        engine, left = bind_of(there(), leased).engine, partial(time_left, self.limits.timeout)
        async with self._places.taken(engine, within=left()):
            return await in_transaction(
                there, leased, work, purpose="answer a question", timeout=left(), writes=False
            )

    def _asked(self, pipeline: Pipeline[Any], key: Any) -> RowAsked:
        leased, failure = pipeline.leased, None
        ready: ColumnElement[bool] = true()
        locking: tuple[LockingPipeline, ...] = ()
        try:
            # A pipeline may want rows only in some replicas, of which this process is none.
            anywhere = getattr(pipeline, "ready_anywhere", pipeline.ready)
            ready = ready_condition(pipeline.name, leased, anywhere)
            beside = next(group for _, group in self.by_database() if pipeline in group)
            locking = LockGraph(beside).locking_pipelines_of(leased, but=pipeline.name)
        # A host's code may raise anything; that is the answer.
        except Exception as error:  # noqa: BLE001
            failure = error
        host, tables = self.host_of(pipeline), self.tables
        paused = () if tables is None or tables.controls is None else (tables.pause_gate,)
        seams = Seams.of(paused if host.gates is None else host.gates, ())
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
        return RowAsked(pipeline, question, names, rivals, tables, failure)

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

    async def _asked_everywhere(
        self, asks: AsksOfDatabase, pipelines: Iterable[Pipeline[Any]] | None = None
    ) -> list[DatabaseAnswers]:
        """Return the answers of each database, in the order of `by_database`."""
        databases = []
        for sessions, group in self.by_database(pipelines):
            engine, names = engine_of(sessions, group[0]), tuple(one.name for one in group)
            databases.append(DatabaseAsks(engine, names, asks(sessions, group)))
        return await asked_by_database(databases, within=self.limits.timeout)

    async def _asked_beside_replicas(
        self, asks: AsksOfDatabase
    ) -> tuple[LiveReplicas, list[DatabaseAnswers]]:
        def with_replicas(sessions: Sessions, pipelines: Sequence[Pipeline[Any]]) -> list[Ask]:
            known = partial(self._replicas_known, sessions, pipelines[0])
            return [known, *asks(sessions, pipelines)]

        answers = await self._asked_everywhere(with_replicas)
        told = [one[0] for one in answers if not isinstance(one, AwayDatabase)]
        replicas = merged_replicas(told, _away(answers))
        return replicas, [one if isinstance(one, AwayDatabase) else one[1:] for one in answers]

    async def _replicas_known(self, sessions: Sessions, pipeline: Pipeline[Any]) -> LiveReplicas:
        table = None if self.tables is None else self.tables.replicas
        if table is None:
            return LiveReplicas(None, None)
        ask = partial(read_replicas, table=table)
        try:
            return await self.read(pipeline.leased, ask, sessions=sessions)
        except Exception as error:
            # A migration that was not run costs the names of replicas, and nothing else.
            if not is_of_a_statement(error):
                raise
            why = refusal_of(error)
        if len(list(self.by_database())) > 1:
            why = f"{database_name(engine_of(sessions, pipeline))}: {why}"
        return LiveReplicas(None, None, why=why)


def _away(answers: Iterable[DatabaseAnswers]) -> tuple[AwayDatabase, ...]:
    return tuple(one for one in answers if isinstance(one, AwayDatabase))


NOT_REDACTED: Final = "(an error that redact= has failed for)"
"""In place of an error's text, which is not shown as it is."""


def _contained(redact: Callable[[str], str]) -> Callable[[str], str]:
    """Return `redact` with `NOT_REDACTED` where it raises, or returns no text."""

    def redacted(text: str) -> str:
        try:
            found: object = redact(text)
        except Exception:  # noqa: BLE001 - a host's code may raise anything
            return NOT_REDACTED
        return found if isinstance(found, str) else NOT_REDACTED

    return redacted


def _is_of(pipeline: Pipeline[Any], model: type[Any]) -> bool:
    """Whether rows of `model` may be those of a pipeline, or the other way round."""
    return issubclass(pipeline.model, model) or issubclass(model, pipeline.model)
