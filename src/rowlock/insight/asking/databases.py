"""Several databases of one app, asked side by side: one that is away costs its own part of an
answer.

The one idea: this is the one place where the refusal of a whole database becomes a value. The first
question that it refuses ends the others to it, so it costs one time-out, however many pipelines
work there.

Not here: a statement that a database refuses (``questions.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypeAlias

from sqlalchemy import Engine

from rowlock.database.faults import is_of_a_database
from rowlock.errors import TransactionTimeout
from rowlock.insight.asking.concurrent_questions import Ask, asked_concurrently
from rowlock.insight.asking.wanted_time import half_of_the_time
from rowlock.insight.naming import database_name
from rowlock.insight.questions import refusal_of
from rowlock.insight.shown import shown

DATABASES_AT_ONCE_MAX: Final = 32
"""Most databases that are asked at once; the others wait."""
NAMES_MAX: Final = 5
"""Most pipelines of a database that is away that are named in a line."""


@dataclass(frozen=True, slots=True)
class AwayDatabase:
    """A database that could not be asked.

    Attributes:
        database: its kind, host and name.
        pipelines: that work there.
        why: what it, or its driver, said.
        error: the same as it was raised.
    """

    database: str
    pipelines: tuple[str, ...]
    why: str
    error: Exception = field(compare=False, repr=False)

    @property
    def what(self) -> str:
        """That it could not be asked, and why, without its name."""
        return f"cannot be asked: {self.why}"

    @property
    def unseen(self) -> str:
        """Of which pipelines nothing is known."""
        names = ", ".join(shown(name, 60) for name in self.pipelines[:NAMES_MAX])
        left = len(self.pipelines) - NAMES_MAX
        more = f" and {left} more" if left > 0 else ""
        return f"nothing is known of {names}{more}"

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.database} {self.what}; {self.unseen}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"database": self.database, "pipelines": list(self.pipelines), "why": self.why}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        why = document["why"]
        return cls(document["database"], tuple(document["pipelines"]), why, ConnectionError(why))


@dataclass(frozen=True, slots=True)
class DatabaseAsks:
    """What is asked of one database.

    Attributes:
        engine: leads there.
        pipelines: that work there.
        asks: the questions.
    """

    engine: Engine
    pipelines: tuple[str, ...]
    asks: Sequence[Ask]

    def away(self, error: Exception) -> AwayDatabase:
        """Return that the database could not be asked."""
        text = " ".join(_why(error).split())
        password = self.engine.url.password
        if password:
            text = text.replace(str(password), "***")
        return AwayDatabase(database_name(self.engine), self.pipelines, shown(text), error)


DatabaseAnswers: TypeAlias = list[Any] | AwayDatabase
"""What one database answered, in the order of its questions, or that it is away."""


async def asked_by_database(databases: Sequence[DatabaseAsks]) -> list[DatabaseAnswers]:
    """Return what each of `databases` answers, in their order. Of several, one that cannot be asked
    is an `AwayDatabase`; if all are away, or there is one alone, its error is raised.
    """
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
    """Raise the error of the first database that is away; nothing if none is."""
    if away:
        raise away[0].error


async def _asked(database: DatabaseAsks) -> DatabaseAnswers:
    try:
        return await asked_concurrently(database.asks)
    except Exception as error:
        if not is_of_a_database(error):
            raise
        return database.away(error)


def _why(error: Exception) -> str:
    if isinstance(error, TransactionTimeout):
        return f"no answer within {error.timeout_s:.2g} s"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return refusal_of(error)
