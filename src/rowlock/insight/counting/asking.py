"""Asks what waits and who lives, each in the fewest ways to the database: a statement that is
refused is asked again part by part, and has cost a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sqlalchemy import Table

from rowlock.insight.counting.replicas import LiveReplicas, read_replicas
from rowlock.insight.counting.waiting import Waiting, waiting_of
from rowlock.insight.facts import RowAsked
from rowlock.insight.questions import is_of_a_statement, refusal_of, whole_else_apart

Read = Callable[..., Awaitable[Any]]
"""Runs a question in a transaction that reads, on one database."""


async def waiting_asked(read: Read, asked: RowAsked) -> Waiting:
    """Ask what waits for one pipeline, and what stands in its way."""
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
