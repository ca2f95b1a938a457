"""What became of an outcome, told: counters, events, the log, hints and the fetcher.

Not here: what happens to the row (``pipelines/settling/settler.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Generic

from rowlock import events
from rowlock.leases.apply import Written
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import (
    NOTHING,
    Apply,
    Delete,
    Outcome,
    Park,
    Reset,
    Retry,
    error_text,
    hint_targets,
)
from rowlock.pipelines.settling.planner import reason_parked
from rowlock.pipelines.settling.rounds import Rounds
from rowlock.rows.leased_table import ModelT

logger = get_logger(__name__)


class Recorder(Generic[ModelT]):
    """Tells what became of outcomes of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
        rounds: which rows come back as they were.
        wake_after: has the fetcher look after a delay; set by the run.
    """

    def __init__(self, context: PipelineContext[ModelT], rounds: Rounds) -> None:
        self.context = context
        self.rounds = rounds
        self.wake_after: Callable[[timedelta], None] = lambda _delay: None

    def __repr__(self) -> str:
        return f"<Recorder of {self.context.name}>"

    def _hint(self, outcome: Apply | Delete) -> None:
        try:
            for model in hint_targets(outcome.hint):
                self.context.hinter.hint_fetch(model)
        except BaseException:
            # It is written. Whom the host wanted to be hinted is the host's object, which may raise
            # anything.
            name = self.context.name
            logger.exception("%s: hints after an outcome failed", name, extra={"pipeline": name})

    def written(self, item: PipelineItem[ModelT], outcome: Outcome, written: Written) -> None:
        """Count and tell an outcome that was written, and raise its hints."""
        counters, name = self.context.counters, type(outcome).__name__
        error: str | None = None
        match outcome:
            case _ if written is Written.PARKED:
                name = Park.__name__
                error = self._parked(item, outcome)
            case Apply():
                counters.applied += 1
                if self.rounds.are_watched:
                    self._note_round(item, outcome)
                if outcome.hint is not NOTHING:
                    self._hint(outcome)
            case Delete():
                counters.deleted += 1
                self._hint(outcome)
            case Retry():
                counters.retried += 1
                is_heard = events.has_listeners(events.ItemApplied)
                error = error_text(outcome.error) if is_heard else None
            case Reset():
                counters.reset += 1
                self.wake_after(self.context.settings.retry_delay)
            case Park():
                error = self._parked(item, outcome)
        if events.has_listeners(events.ItemApplied):
            events.emit(
                events.ItemApplied(
                    self.context.name,
                    item.id,
                    item.lock_token,
                    name,
                    process_s=item.process_s,
                    columns=_columns_of(outcome),
                    error=error,
                    attempt=item.begun_attempt,
                    waited_s=item.waited_s,
                )
            )

    def _note_round(self, item: PipelineItem[ModelT], outcome: Apply) -> None:
        noted = self.rounds.note(item, outcome)
        if noted is None:
            return
        context, (rounds, rest) = self.context, noted
        context.counters.unchanged += 1
        logger.warning(
            "%s: row %s is ready again after Apply(%s), time after time, so it rests for %s; change"
            " what ready() asks for, or say with Apply(after=...) when to look at it again",
            context.name,
            item.id,
            ", ".join(map(str, outcome.values)) or "nothing",
            rest,
            extra={"pipeline": context.name, "row_id": item.id, "rounds": rounds},
        )
        rest_s = rest.total_seconds()
        events.emit(events.RowUnchanged(context.name, item.id, item.lock_token, rounds, rest_s))

    def _parked(self, item: PipelineItem[ModelT], outcome: Outcome) -> str:
        context = self.context
        context.counters.parked += 1
        reason = reason_parked(item, outcome, context.settings)
        logger.warning(
            "%s: row %s is parked, and nothing works on it until it is unparked: %s",
            context.name,
            item.id,
            reason,
            extra={"pipeline": context.name, "row_id": item.id, "reason": reason},
        )
        events.emit(events.ItemParked(context.name, item.id, item.lock_token, reason))
        return reason

    def dropped(
        self,
        item: PipelineItem[ModelT],
        outcome: Outcome,
        written: Written,
        *,
        cleans_up: bool = True,
    ) -> None:
        """Tell of an outcome that was not written, and whether the host is asked to clean up."""
        name = type(outcome).__name__
        logger.warning(
            "%s: %s of row %s was not written (%s); look for side effects of this attempt: %s",
            self.context.name,
            name,
            item.id,
            written.value,
            (
                "on_stale is called"
                if cleans_up
                else "on_stale is not called, since it may have been applied"
            ),
            extra={
                "pipeline": self.context.name,
                "row_id": item.id,
                "outcome": name,
                "reason": written.value,
            },
        )
        self.stale(item, written.value)

    def stale(self, item: PipelineItem[ModelT], reason: str) -> None:
        """Count and tell an attempt that came to nothing, for `reason`."""
        if reason == Written.CHANGED.value:
            self.context.counters.changed += 1
        else:
            self.context.counters.stale += 1
            self.context.counters.never_begun += not item.begun_at
        events.emit(
            events.ItemStale(
                self.context.name,
                item.id,
                item.lock_token,
                reason,
                process_s=item.process_s,
                attempt=item.begun_attempt,
                waited_s=item.waited_s,
            )
        )


def _columns_of(outcome: Outcome) -> tuple[str, ...]:
    """Return the names of the columns that `outcome` sets."""
    values = outcome.values if isinstance(outcome, Apply | Retry) else ()
    return tuple(key if isinstance(key, str) else str(getattr(key, "key", key)) for key in values)
