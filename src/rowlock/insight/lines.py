"""The lines of an explanation: what was asked of a row, and what the database said.

The one idea: the same lines in the same order for every row, so that two explanations are compared
at a glance. An answer is ``yes``, ``no``, ``?`` (it could not be asked), a dash (there is nothing
to ask), a word or a number.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rowlock.insight.headlines import false_part, replica
from rowlock.insight.shown import ago, ahead, clock_time, shown
from rowlock.insight.verdicts import Answer, Facts, Refused

YES, NO, UNKNOWN, NOTHING = "yes", "no", "?", "\N{EN DASH}"
NAME_WIDTH: Final = 10
ANSWER_WIDTH: Final = 6
NAMES_MAX: Final = 5
"""How many names of replicas a line has."""
TABLE_REPLICAS: Final = "without rowlock_replicas nobody knows: insight_tables(metadata)"
TABLE_CONTROLS: Final = "without rowlock_controls nobody can pause: insight_tables(metadata)"


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    """One line: what was asked, the answer, and more about it."""

    name: str
    answer: str
    detail: str = ""

    def text_lines(self, width: int) -> list[str]:
        """Return it as text, wrapped below its detail."""
        answer = self.answer.ljust(ANSWER_WIDTH) if self.detail else self.answer
        if self.detail and len(self.answer) >= ANSWER_WIDTH:
            answer = f"{self.answer}  "
        label = f"  {self.name.ljust(NAME_WIDTH)}{answer}"
        if not self.detail:
            return [label]
        indent = " " * min(len(label), 2 + NAME_WIDTH + ANSWER_WIDTH)
        return textwrap.wrap(
            self.detail,
            width,
            initial_indent=label,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )


def lines_of(facts: Facts) -> tuple[ExplanationLine, ...]:
    """Return the lines of a row, in their order."""
    if facts.table_lock is not None:
        names = ("ready", "due", "lease", "owner", "awaited", "paused", "attempts")
        return (*(ExplanationLine(name, UNKNOWN) for name in names), _replicas(facts))
    return (
        _ready(facts),
        _due(facts),
        _lease(facts),
        ExplanationLine("owner", shown(facts.column("lock_owner") or "nobody")),
        _awaited(facts),
        _paused(facts),
        _attempts(facts),
        _replicas(facts),
        *_work(facts),
        *_wing(facts),
    )


def _answer(part: Answer) -> str:
    if part is None or isinstance(part, Refused):
        return UNKNOWN
    return YES if part else NO


def _refusal(part: object) -> str:
    return shown(part.why) if isinstance(part, Refused) else ""


def _ready(facts: Facts) -> ExplanationLine:
    detail = _refusal(facts.ready)
    if not detail:
        detail = facts.ready_text if facts.ready else false_part(facts)
    return ExplanationLine("ready", _answer(facts.ready), detail)


def _due(facts: Facts) -> ExplanationLine:
    return ExplanationLine(
        "due", _answer(facts.due), _refusal(facts.due) or "; ".join(_when(facts))
    )


def _when(facts: Facts) -> Iterator[str]:
    now = facts.at
    if now is None:
        return
    parked_at, due_at = facts.column("parked_at"), facts.column("due_at")
    if parked_at is not None:
        yield f"parked since {clock_time(parked_at, now=now)}"
    elif due_at is not None:
        left_s = (due_at - now).total_seconds()
        when = ahead(left_s) if left_s > 0 else ago(-left_s)
        yield f"due_at is {clock_time(due_at, now=now)}, {when}"
    elif "due_at" not in facts.columns:
        last_s = facts.since("last_processed_at")
        yield "never processed" if last_s is None else f"processed {ago(last_s)}"


def _lease(facts: Facts) -> ExplanationLine:
    if isinstance(facts.free, Refused):
        return ExplanationLine("lease", UNKNOWN, _refusal(facts.free))
    ended_s = facts.since("lock_expires_at")
    if facts.column("lock_token") is None and ended_s is None:
        return ExplanationLine("lease", "free")
    if facts.free:
        ended = "" if ended_s is None else f"{ago(ended_s)}, "
        return ExplanationLine("lease", "ended", f"{ended}of {replica(facts)}")
    return ExplanationLine("lease", "live", f"of {replica(facts)}, ends {ahead(-(ended_s or 0.0))}")


def _awaited(facts: Facts) -> ExplanationLine:
    parts = facts.unawaited.values()
    if not parts:
        return ExplanationLine("awaited", NOTHING, "no pipeline locks such rows")
    if False in parts:
        main = facts.awaiting
        by = "" if main is None else f"by {main.model} {shown(main.key)} ({main.pipeline})"
        return ExplanationLine("awaited", YES, by)
    return _no_unless_refused("awaited", parts)


def _no_unless_refused(name: str, parts: Iterable[Answer]) -> ExplanationLine:
    refused = next((part for part in parts if isinstance(part, Refused)), None)
    if refused is None:
        return ExplanationLine(name, NO)
    return ExplanationLine(name, UNKNOWN, _refusal(refused))


def _paused(facts: Facts) -> ExplanationLine:
    parts = facts.gates.values()
    if not parts:
        return ExplanationLine("paused", UNKNOWN, TABLE_CONTROLS)
    if False in parts:
        pause = facts.pause
        by = "" if pause is None else f"by {shown(pause.by)}: {shown(pause.reason)}"
        return ExplanationLine("paused", YES, by)
    return _no_unless_refused("paused", parts)


def _attempts(facts: Facts) -> ExplanationLine:
    last_s = facts.since("last_processed_at")
    last = "never processed" if last_s is None else f"last processed {ago(last_s)}"
    attempts = facts.columns.get("attempts")
    if isinstance(attempts, Refused):
        return ExplanationLine("attempts", UNKNOWN, _refusal(attempts))
    if attempts is None:
        return ExplanationLine("attempts", NOTHING, last)
    of = facts.rules.max_attempts
    return ExplanationLine("attempts", str(attempts), f"of {of}; {last}" if of else last)


def _replicas(facts: Facts) -> ExplanationLine:
    presence = facts.presence
    if presence is None:
        return ExplanationLine("replicas", UNKNOWN, shown(facts.no_replicas) or TABLE_REPLICAS)
    names = [shown(name) for name in presence.running[:NAMES_MAX]]
    more = len(presence.running) - len(names)
    run = ", ".join(names) + (f" and {more} more" if more else "")
    return ExplanationLine(
        "replicas", str(len(presence.running)), f"run it: {run}" if run else "none runs it"
    )


def _work(facts: Facts) -> Iterator[ExplanationLine]:
    work = facts.work
    if not work:
        return
    told = [
        f"{name} {shown(work[name])}"
        for name in ("worker", "progress", "losses")
        if work.get(name) not in (None, "")
    ]
    deadline = facts.column("deadline_at")
    if deadline is not None and facts.at is not None:
        told.append(f"deadline {clock_time(deadline, now=facts.at)}")
    yield ExplanationLine("work", shown(work.get("status") or UNKNOWN), "; ".join(told))


def _wing(facts: Facts) -> Iterator[ExplanationLine]:
    if facts.wing is not None:
        yield ExplanationLine(facts.wing.kind, shown(facts.wing.answer), facts.wing.detail)
