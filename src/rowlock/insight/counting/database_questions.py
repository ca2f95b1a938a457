"""Questions that concern all databases of an app: each is asked beside the others, and beside the
replicas that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from rowlock.insight.asking.concurrent_questions import Ask
from rowlock.insight.asking.databases import (
    AwayDatabase,
    DatabaseAnswers,
    DatabaseAsks,
    asked_by_database,
)
from rowlock.insight.asking.hosted_pipelines import Sessions, engine_of
from rowlock.insight.asking.questioner import Questioner
from rowlock.insight.counting.asking import Read, replicas_asked
from rowlock.insight.counting.replicas import LiveReplicas, merged_replicas
from rowlock.insight.naming import database_name
from rowlock.pipelines.pipeline import Pipeline

AsksOfDatabase: TypeAlias = Callable[[Sessions, Sequence[Pipeline[Any]]], Sequence[Ask]]
"""Makes the questions to one database, of the pipelines that work there."""


class DatabaseQuestions(Questioner):
    """Asks all databases of an app."""

    async def asked_everywhere(
        self, asks: AsksOfDatabase, pipelines: Iterable[Pipeline[Any]] | None = None
    ) -> list[DatabaseAnswers]:
        """Return what each database answers, in the order of `by_database`."""
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
        """Return which replicas live, and what each database answers."""

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
