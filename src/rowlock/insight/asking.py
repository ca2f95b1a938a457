"""The pipelines of an app, and how their databases are asked: side by side, in the time for which
an answer is wanted, and so that a refusal costs no more than what was refused.

The one idea: a refusal becomes a value in two places, and both are here. A database that cannot be
asked costs what works there: the first question that it refuses ends the others to it, so it costs
one time-out, however many pipelines work there. A statement that is refused costs its part. Each
question needs a connection of the host's pool, from which outcomes get theirs, too; so only as many
are under way as there are places, and most of the pool is left to the work.

The trap: each question has a limit of its own, and a cancelled caller waits until its transaction
has ended. So several questions in a row, or one that begins late, would outlast its caller;
instead, the time that is left goes with the call, down to each transaction.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import Pipeline
from rowlock.clock import monotonic
from rowlock.errors import AppError, ConfigurationError, TransactionTimeout, describe
from rowlock.insight.insight_dialect import is_locked_out
from rowlock.insight.shown import named_first, read_key, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import Refused
from rowlock.spi import (
    Gate,
    LeasedTable,
    bind_of,
    check_session_factory,
    is_of_a_database,
    is_outage,
    is_transient,
)

T = TypeVar("T")

# ---------------------------------------------------------------- the pipelines of an app


Sessions: TypeAlias = async_sessionmaker[AsyncSession]
ByDatabase: TypeAlias = Iterator[tuple[Sessions, list[Pipeline[Any]]]]


@dataclass(frozen=True, slots=True)
class PipelineHost:
    """The sessions and the gates of a pipeline's manager; `gates` is None if that is not known."""

    session_factory: Sessions
    gates: tuple[Gate, ...] | None = None


class HostedPipelines:
    """The pipelines of an app, which need not run, each with the host that its manager is."""

    def __init__(
        self,
        session_factory: Sessions,
        pipelines: Iterable[Pipeline[Any]],
        *,
        tables: InsightTables | None = None,
    ) -> None:
        self.session_factory = session_factory
        self.pipelines: dict[str, Pipeline[Any]] = {}
        self.tables = tables
        self._hosts: dict[str, PipelineHost] = {}
        self._engines: dict[str, Engine] = {}
        self.add(PipelineHost(session_factory), pipelines)

    def add(self, host: PipelineHost, pipelines: Iterable[Pipeline[Any]]) -> None:
        for pipeline in pipelines:
            if pipeline.name in self.pipelines:
                raise ConfigurationError(f"two pipelines are named {pipeline.name}; rename one")
            check_session_factory(host.session_factory, pipeline.leased)
            self.pipelines[pipeline.name] = pipeline
            self._hosts[pipeline.name] = host
            self._engines[pipeline.name] = engine_of(host.session_factory, pipeline)

    def host_of(self, pipeline: Pipeline[Any]) -> PipelineHost:
        return self._hosts[pipeline.name]

    def sessions_of(self, leased: LeasedTable) -> Sessions:
        """Return the sessions of the first pipeline that works on a table, or else the host's."""
        for pipeline in self.pipelines.values():
            if pipeline.leased.table is leased.table:
                return self.host_of(pipeline).session_factory
        return self.session_factory

    def by_database(self, pipelines: Iterable[Pipeline[Any]] | None = None) -> ByDatabase:
        """Group the pipelines by database, with sessions that lead there."""
        return by_database(
            (self.host_of(one).session_factory, one, self._engines[one.name])
            for one in (self.pipelines.values() if pipelines is None else pipelines)
        )

    def pipeline(self, given: Pipeline[Any] | str) -> Pipeline[Any]:
        name = given if isinstance(given, str) else given.name
        if name not in self.pipelines:
            instead = _instead(name, self.pipelines)
            raise AppError(f"no pipeline of this app is named {shown(name)}{instead}")
        return self.pipelines[name]

    def model(self, given: type[Any] | str) -> type[Any]:
        """Return the class that is meant, by its name or its table's; raises AppError if no
        registry has it.
        """
        if isinstance(given, type):
            return given
        pipelines = self.pipelines.values()
        models = {
            mapper.class_: getattr(mapper.local_table, "name", None)
            for pipeline in pipelines
            for mapper in pipeline.leased.mapper.registry.mappers
        }
        worked_on = {pipeline.model for pipeline in pipelines}
        fitting = [one for one, table in models.items() if given in {one.__name__, table}]
        if fitting:
            # Of several classes of one table that is meant on which a pipeline works.
            return min(fitting, key=lambda one: (one not in worked_on, one.__name__ != given))
        instead = _instead(given, [one.__name__ for one in worked_on])
        raise AppError(f"no model of this app is named {shown(given)}{instead}")

    def row(self, model: type[Any] | str, given: object) -> tuple[LeasedTable, Any]:
        mapped = self.model(model)
        known = (one.leased for one in self.pipelines.values() if one.model is mapped)
        leased = next(known, None) or LeasedTable.of(mapped)
        return leased, read_key(leased, given)


def by_database(pipelines: Iterable[tuple[Sessions, Pipeline[Any], Engine]]) -> ByDatabase:
    """Group the pipelines by engine, with sessions that lead there."""
    found: dict[int, tuple[Sessions, list[Pipeline[Any]]]] = {}
    for sessions, pipeline, engine in pipelines:
        found.setdefault(id(engine), (sessions, []))[1].append(pipeline)
    yield from found.values()


def engine_of(sessions: Sessions, pipeline: Pipeline[Any]) -> Engine:
    return bind_of(sessions(), pipeline.leased).engine


def database_name(engine: Engine) -> str:
    name = PurePath(engine.url.database or "").name
    host = f"{engine.url.host}/" if engine.url.host else ""
    return shown(f"{engine.dialect.name} {host}{name}")


def _instead(given: str, names: Collection[str]) -> str:
    nearest = get_close_matches(given, sorted(names), n=1)
    if nearest:
        return f"; {nearest[0]} may be meant"
    return f"; there are {', '.join(sorted(names))}" if names else "; it has no pipelines"


# ---------------------------------------------------------------- side by side


QUESTIONS_AT_ONCE_MAX: Final = 4
"""Most questions of one `Insight` to one database that are asked at once; the others wait."""
DATABASES_AT_ONCE_MAX: Final = 32  # most databases that are asked at once; the others wait
Ask: TypeAlias = Callable[[], Awaitable[Any]]


class QuestionPlaces:
    """Places for questions, per event loop and engine: a database that hangs delays no other."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakKeyDictionary[Engine, asyncio.Semaphore]
        ] = WeakKeyDictionary()

    @asynccontextmanager
    async def taken(self, engine: Engine, *, within: timedelta) -> AsyncIterator[None]:
        """Occupy a place during the block; raises TransactionTimeout if there is none in time."""
        by_engine = self._by_loop.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
        places = by_engine.setdefault(engine, asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX))
        within_s = within.total_seconds()
        try:
            async with asyncio.timeout(within_s):
                await places.acquire()
        except TimeoutError as error:
            raise TransactionTimeout(purpose="answer a question", timeout_s=within_s) from error
        try:
            yield
        finally:
            places.release()


async def asked_concurrently(
    asks: Sequence[Ask], *, at_once: int = QUESTIONS_AT_ONCE_MAX
) -> list[Any]:
    """Return the answers of all `asks` in their order; the first error ends the others."""
    answers: dict[int, Any] = {}
    left = iter(enumerate(asks))

    async def ask_what_is_left() -> None:
        for number, ask in left:
            answers[number] = await ask()

    # No TaskGroup: behind an error, that of Python 3.11 leaves its caller marked as cancelled.
    tasks = [asyncio.create_task(ask_what_is_left(), name="rowlock: ask") for _ in asks[:at_once]]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in range(len(asks))]


# ---------------------------------------------------------------- until when


_ENDS: Final[ContextVar[float | None]] = ContextVar("rowlock_answer_wanted_until", default=None)


@contextmanager
def wanted_within(seconds: float) -> Iterator[None]:
    """Have all that is asked in the block, and in tasks that begin there, end after `seconds`."""
    token = _ENDS.set(monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


def time_left(most: timedelta) -> timedelta:
    """Return how long a question that begins now may take: until its answer is not wanted."""
    ends = _ENDS.get()
    if ends is None:
        return most
    return min(most, timedelta(seconds=max(0.0, ends - monotonic())))


# ---------------------------------------------------------------- what a database refuses


_CLASSES: Final = re.compile(r"^\w+: (?:\([\w.]+\) ?)?(?:<class '[\w.]+'>: )?")
"""What stands in front of a database's own words: the classes of SQLAlchemy and of the driver."""


async def ask_value(connection: AsyncConnection, statement: Any, *, apart: bool) -> Any:
    """Return the first column of the first row; None if there is no row."""
    found = await ask_first(connection, statement, apart=apart)
    return found if found is None or isinstance(found, Refused) else found[0]


async def ask_first(connection: AsyncConnection, statement: Any, *, apart: bool) -> Any:
    return await ask_part(connection, lambda: _first(connection, statement), apart=apart)


async def _first(connection: AsyncConnection, statement: Any) -> Any:
    return (await connection.execute(statement)).first()


async def ask_part(connection: AsyncConnection, ask: Ask, *, apart: bool) -> Any:
    """Return the answer of `ask`; with `apart`, a `Refused` if the database refuses it."""
    if not apart:
        return await ask()
    try:
        async with connection.begin_nested():
            return await ask()
    except Exception as error:
        if not is_of_a_statement(error):
            raise
        return Refused(refusal_of(error), may_pass=is_transient(error))


async def whole_else_apart(
    read: Callable[..., Awaitable[T]],
    *,
    part_timeout: Callable[[Exception], timedelta] | None = None,
) -> T:
    """Return the answer of `read` with ``apart=False``, which needs no savepoints; if a statement
    is refused, with ``apart=True``, and the ``statement_timeout`` of `part_timeout`.
    """
    try:
        return await read(apart=False)
    except Exception as error:
        if not is_of_a_statement(error):
            raise
        shorter = {} if part_timeout is None else {"statement_timeout": part_timeout(error)}
    return await read(apart=True, **shorter)


def refusal_of(error: Exception) -> str:
    text = describe(error)
    return _CLASSES.sub("", text) if isinstance(error, DBAPIError) else text


def is_of_a_statement(error: BaseException) -> bool:
    """Whether an error is of one statement, so that the connection may answer the next."""
    if isinstance(error, DBAPIError):
        # Without one it was raised while the connection was made, or is that of its end.
        is_of_one = error.statement is not None and not error.connection_invalidated
        return is_of_one and not is_locked_out(error)
    # A LookupError is that of an Enum which lacks what stands in a row.
    of_a_value = ValueError | TypeError | ArithmeticError | LookupError
    return isinstance(error, SQLAlchemyError | of_a_value) and not is_outage(error)


# ---------------------------------------------------------------- several databases


PIPELINES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class AwayDatabase:
    """A database that could not be asked; `why` is what it, or its driver, said."""

    database: str
    pipelines: tuple[str, ...]
    why: str
    error: Any = field(default=None, compare=False, repr=False)

    @property
    def what(self) -> str:
        return f"cannot be asked: {self.why}"

    @property
    def unseen(self) -> str:
        """The pipelines about which nothing is known, in a line."""
        names = [shown(name, 60) for name in self.pipelines]
        return f"nothing is known of {named_first(names, PIPELINES_NAMED)}"

    @property
    def text(self) -> str:
        return f"{self.database} {self.what}; {self.unseen}"

    def to_dict(self) -> dict[str, Any]:
        return {"database": self.database, "pipelines": list(self.pipelines), "why": self.why}


@dataclass(frozen=True, slots=True)
class DatabaseAsks:
    engine: Engine
    pipelines: tuple[str, ...]
    asks: Sequence[Ask]

    async def answers(self) -> DatabaseAnswers:
        try:
            return await asked_concurrently(self.asks)
        except Exception as error:
            if not is_of_a_database(error):
                raise
            return self._away(error)

    def _away(self, error: Exception) -> AwayDatabase:
        if isinstance(error, TransactionTimeout):
            why = f"no answer within {error.timeout_s:.2g} s"
        else:
            is_silent = isinstance(error, TimeoutError) and not str(error)
            why = "no answer in time" if is_silent else refusal_of(error)
        text = " ".join(why.split())
        password = self.engine.url.password
        if password:
            text = text.replace(str(password), "***")
        return AwayDatabase(database_name(self.engine), self.pipelines, shown(text), error)


DatabaseAnswers: TypeAlias = list[Any] | AwayDatabase
"""The answers of one database, in the order of its questions, or that it is away."""


async def asked_by_database(
    databases: Sequence[DatabaseAsks], *, within: timedelta
) -> list[DatabaseAnswers]:
    """Return the answers of each database, or that it is away; if all are, an error is raised.

    Of several each has half of the time, so that one that hangs leaves time to show the others.
    """
    if len(databases) == 1:
        return [await asked_concurrently(databases[0].asks)]
    with wanted_within(time_left(within).total_seconds() / 2):
        asks = [one.answers for one in databases]
        answers: list[DatabaseAnswers]
        answers = await asked_concurrently(asks, at_once=DATABASES_AT_ONCE_MAX)
    away = [one for one in answers if isinstance(one, AwayDatabase)]
    if len(away) == len(answers):
        raise_if_away(away)
    return answers


def raise_if_away(away: Sequence[AwayDatabase]) -> None:
    if away:
        raise away[0].error
