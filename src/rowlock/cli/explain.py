"""``rowlock explain MODEL ID``: why a row waits, who has it, and what to do; with ``--pipeline
NAME`` the same of a pipeline as a whole.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from rowlock.cli.answering import NEEDS_PERSON, NO_SUCH_ROW, WELL, add_app_arguments, answered
from rowlock.errors import AppError
from rowlock.insight.checking.pipeline_view import PipelineView
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight


@dataclass(frozen=True, slots=True)
class _WithPlan:
    """A pipeline, with the plan of its claims."""

    view: PipelineView

    @property
    def needs_person(self) -> bool:
        return self.view.needs_person

    def text(self, width: int = 100) -> str:
        return self.view.text(width, with_plan=True)

    def to_dict(self) -> dict[str, Any]:
        return self.view.to_dict()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say why a row waits, or who works on it. Reads one row, writes and locks nothing. Exit"
        " code 1: a person is needed; 4: there is no such row."
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="the class of the row, or its table"
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the key of the row")
    parser.add_argument(
        "--pipeline", metavar="NAME", help="a pipeline as a whole, instead of a row"
    )
    parser.add_argument(
        "--plan", action="store_true", help="with --pipeline: how the database reads a claim"
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation, and return the exit code."""

    async def ask(insight: Insight) -> Explanation | PipelineView | _WithPlan:
        check_words(options)
        if options.pipeline is None:
            return await insight.explain(options.model, options.id)
        view = await insight.explain_pipeline(options.pipeline)
        return _WithPlan(view) if options.plan else view

    return answered(options, ask, code_of=_code_of)


def check_words(options: argparse.Namespace) -> None:
    """Check that a row or a pipeline is named, and not both.

    Raises:
        AppError: it is otherwise.
    """
    names_row = options.model is not None and options.id is not None
    if options.pipeline is not None and options.model is not None:
        raise AppError("name a row or a pipeline: explain MODEL ID, or explain --pipeline NAME")
    if options.pipeline is None and (not names_row or options.plan):
        raise AppError("explain what? explain MODEL ID, or explain --pipeline NAME [--plan]")


def _code_of(answer: Any) -> int:
    if isinstance(answer, Explanation) and not answer.is_there:
        return NO_SUCH_ROW
    return NEEDS_PERSON if answer.needs_person else WELL
