"""Which rows of a pipeline still want something, where the pipeline itself knows better than
`ready()`.

The one idea: `ready()` of work without an end is always true. A wing knows when such work has
nothing left to do, and says so by a method `unsettled` of its pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import ColumnElement

from rowlock.pipelines.pipeline import Pipeline

__all__ = ["KnowsUnsettled", "all_that_know", "unsettled_rows"]


@runtime_checkable
class KnowsUnsettled(Protocol):
    """A pipeline with a condition of its own for rows that still want something."""

    def unsettled(self) -> ColumnElement[bool]:
        """Return which of its rows still want something."""
        ...


def unsettled_rows(pipeline: Any) -> ColumnElement[bool] | None:
    """Return which rows of `pipeline` still want something; None if it has no condition of its
    own for that.
    """
    return pipeline.unsettled() if isinstance(pipeline, KnowsUnsettled) else None


def all_that_know(pipelines: Sequence[Pipeline[Any]]) -> list[Pipeline[Any]]:
    """Return one pipeline of each name; of those with a condition of their own, all: each replica
    knows its own part.
    """
    first = {pipeline.name: pipeline for pipeline in reversed(pipelines)}
    return [one for one in pipelines if first[one.name] is one or isinstance(one, KnowsUnsettled)]
