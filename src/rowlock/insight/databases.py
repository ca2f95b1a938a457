"""Questions that are asked side by side, of one database or of several, in the time for which their
answer is wanted.

The one idea: this is the one place where the refusal of a whole database becomes a value. The first
question that it refuses ends the others to it, so it costs one time-out, however many pipelines
work there. Each question needs a connection of the host's pool, from which outcomes get theirs,
too; so only as many are under way as there are places, and most of the pool is left to the work.

The trap: each question has a limit of its own, and a cancelled caller waits until its transaction
has ended. So several questions in a row, or one that begins late, would outlast its caller;
instead, the time that is left goes with the call, down to each transaction.

Not here: a statement that a database refuses (``questions.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

from rowlock.clock import monotonic
from rowlock.database.faults import is_of_a_database
from rowlock.errors import TransactionTimeout
from rowlock.insight.naming import database_name
from rowlock.insight.questions import refusal_of
from rowlock.insight.shown import shown

# ---------------------------------------------------------------- places


QUESTIONS_AT_ONCE_MAX: Final = 4
"""Most questions of one `Insight` to one database that are asked at once; the others wait."""


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


# ---------------------------------------------------------------- side by side


Ask: TypeAlias = Callable[[], Awaitable[Any]]


async def asked_concurrently(
    asks: Sequence[Ask], *, at_once: int = QUESTIONS_AT_ONCE_MAX
) -> list[Any]:
    """Return the answers of all `asks` in their order; the first error ends the others."""
    if len(asks) == 1:
        return [await asks[0]()]
    answers: dict[int, Any] = {}
    left = iter(enumerate(asks))

    async def ask_what_is_left() -> None:
        for number, ask in left:
            answers[number] = await ask()

    tasks: list[asyncio.Task[None]] = []
    try:
        for _ in asks[:at_once]:
            # No comprehension: if a task is refused, those before it are to be ended.
            tasks.append(asyncio.create_task(ask_what_is_left(), name="rowlock: ask"))  # noqa: PERF401
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in range(len(asks))]


# ---------------------------------------------------------------- until when


_ENDS: Final[ContextVar[float | None]] = ContextVar("rowlock_answer_wanted_until", default=None)
_IS_HALVED: Final[ContextVar[bool]] = ContextVar("rowlock_beside_other_questions", default=False)


@contextmanager
def wanted_within(seconds: float) -> Iterator[None]:
    """Have all that is asked in the block, and in tasks that begin there, end after `seconds`."""
    token = _ENDS.set(monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


@contextmanager
def half_of_the_time() -> Iterator[None]:
    """Halve the time of each question of the block: one that hangs leaves time for the others."""
    token = _IS_HALVED.set(True)
    try:
        yield
    finally:
        _IS_HALVED.reset(token)


def question_time(most: timedelta) -> timedelta:
    left = time_left(most)
    return left / 2 if _IS_HALVED.get() else left


def time_left(most: timedelta) -> timedelta:
    """Return how long a question that begins now may take: until its answer is not wanted."""
    ends = _ENDS.get()
    if ends is None:
        return most
    return min(most, timedelta(seconds=max(0.0, ends - monotonic())))


# ---------------------------------------------------------------- redaction


Redact = Callable[[str], str]
NOT_REDACTED: Final = "(an error that redact= has failed for)"
"""In place of an error's text, which is not shown as it is."""


def contained_redaction(redact: Redact | None) -> Redact | None:
    """Return `redact` with `NOT_REDACTED` where it raises, or returns no text."""
    if redact is None:
        return None

    def redacted(text: str) -> str:
        try:
            found: object = redact(text)
        # A host's code may raise anything.
        except (Exception, SystemExit):  # noqa: BLE001
            return NOT_REDACTED
        return found if isinstance(found, str) else NOT_REDACTED

    return redacted


# ---------------------------------------------------------------- databases


DATABASES_AT_ONCE_MAX: Final = 32  # most databases that are asked at once; the others wait
NAMES_MAX: Final = 5


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
        names = ", ".join(shown(name, 60) for name in self.pipelines[:NAMES_MAX])
        left = len(self.pipelines) - NAMES_MAX
        more = f" and {left} more" if left > 0 else ""
        return f"nothing is known of {names}{more}"

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

    def away(self, error: Exception) -> AwayDatabase:
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


async def asked_by_database(databases: Sequence[DatabaseAsks]) -> list[DatabaseAnswers]:
    """Return the answers of each database, or that it is away; if all are, an error is raised."""
    if len(databases) == 1:
        return [await asked_concurrently(databases[0].asks)]
    with half_of_the_time():
        answers: list[DatabaseAnswers] = await asked_concurrently(
            [partial(_asked, one) for one in databases], at_once=DATABASES_AT_ONCE_MAX
        )
    away = [one for one in answers if isinstance(one, AwayDatabase)]
    if len(away) == len(answers):
        raise_if_away(away)
    return answers


def raise_if_away(away: Sequence[AwayDatabase]) -> None:
    if away:
        raise away[0].error


async def _asked(database: DatabaseAsks) -> DatabaseAnswers:
    try:
        return await asked_concurrently(database.asks)
    except Exception as error:
        if not is_of_a_database(error):
            raise
        return database.away(error)
