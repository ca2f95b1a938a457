"""Who did what: a line of the log for each action of a person, refused ones too.

The lines go to the logger ``rowlock.audit``, none of them is left out or counted instead, and what
people have typed cannot forge one: control characters are shown as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rowlock.errors import ConfigurationError, PipelineError, Refusal, TransactionTimeout
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.shown import shown
from rowlock.logs import get_audit_logger

logger = get_audit_logger()


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody wants done.

    Attributes:
        action: ``release``, ``park``, ``unpark``, ``make_due``, ``pause`` or ``resume``.
        by: who.
        reason: why.
        model: the class of a row; empty for a pipeline.
        row_id: its key, as text.
        pipeline: the name of a pipeline; empty for a row.
    """

    action: str
    by: str
    reason: str
    model: str = ""
    row_id: str = ""
    pipeline: str = ""

    @property
    def object(self) -> str:
        """What is acted on, such as ``Volume 17``."""
        return self.pipeline or f"{self.model} {self.row_id}"

    def check(self) -> None:
        """Refuse an action of nobody, or for no reason.

        Raises:
            PipelineError: says what is missing.
        """
        for name, text, most in (
            ("by", self.by, PERSON_CHARS_MAX),
            ("reason", self.reason, REASON_CHARS_MAX),
        ):
            if not isinstance(text, str) or not text.strip() or len(text) > most:
                raise PipelineError(
                    f"`{name}` is a text of 1 to {most} characters, not {shown(repr(text), 100)}"
                )


@dataclass(slots=True)
class ActResult:
    """What became of an act.

    Attributes:
        text: for the log.
    """

    text: str = "done"


@contextmanager
def audited(act: Act) -> Iterator[ActResult]:
    """Check `act`, and log what became of it in the block."""
    result = ActResult()
    try:
        act.check()
        yield result
    except BaseException as error:
        _tell(act, f"{_kind_of(error)}: {type(error).__name__}")
        raise
    _tell(act, result.text)


def audit_refusal(act: Act, why: str) -> None:
    """Log that a person was refused before anything was tried."""
    _tell(act, f"refused: {why}")


def _kind_of(error: BaseException) -> str:
    if isinstance(error, TransactionTimeout):
        return "unknown"
    return (
        "refused" if isinstance(error, Refusal | ConfigurationError | PipelineError) else "failed"
    )


def _tell(act: Act, result: str) -> None:
    told = {
        "actor": act.by,
        "action": act.action,
        "model": act.model,
        "row_id": act.row_id,
        "pipeline": act.pipeline,
        "reason": act.reason,
        "result": result,
    }
    fields = {name: shown(value) for name, value in told.items()}
    logger.info(
        "%s: %s of %s, because: %s (%s)",
        fields["actor"],
        fields["action"],
        shown(act.object),
        fields["reason"],
        result,
        extra=fields,
    )
