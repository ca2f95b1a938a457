"""The answer of `Insight.explain`: why a row waits, as data that renders itself.

The one idea: every text is made here once, of facts, and kept. JSON carries it, so every window
shows the same text as a terminal. Its lines are the same in the same order for every row, so that
two explanations are compared at a glance: an answer is ``yes``, ``no``, ``?`` (it could not be
asked), a dash (there is nothing to ask), a word or a number.

Not here: what each verdict says (``verdicts.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from rowlock.insight.asking import AwayDatabase
from rowlock.insight.replicas import (
    ROW_ID_CHARS_MAX,
    LiveReplicas,
    ReplicaState,
    numbers_of,
    summed,
    token_head,
)
from rowlock.insight.shown import (
    WIDTH_MIN,
    ago,
    ahead,
    by_the_database,
    clock_time,
    iso,
    named_first,
    shown,
    wrapped,
)
from rowlock.insight.verdicts import (
    Answer,
    Facts,
    InProgress,
    Refused,
    Verdict,
    false_part,
    finding_of,
    needs_person,
    no_pipeline,
    replica,
    verdicts_of,
)
from rowlock.spi import mark_of

# ---------------------------------------------------------------- what the replicas report of it


def with_replicas(facts: Facts, replicas: LiveReplicas) -> Facts:
    told = replicas.unasked if replicas.known is None else replicas.running(facts.pipeline)
    if isinstance(told, str):
        return replace(facts, no_replicas=told)
    in_progress = _in_progress(facts, replicas)
    return replace(facts, presence=told, in_progress=in_progress, wing=facts.wing or told.graph)


def _in_progress(facts: Facts, replicas: LiveReplicas) -> InProgress | None:
    mark, head = mark_of(facts.column("lock_token")), token_head(facts.column("lock_token"))
    key = shown(facts.key, ROW_ID_CHARS_MAX)
    for one in replicas.live:
        if one.mark != mark:
            continue
        for item in one.items:
            told = (item.get("pipeline"), item.get("row_id"), item.get("token", head))
            if told == (facts.pipeline, key, head):
                return _said(item, one, one.pipelines.get(facts.pipeline, {}))
    return None


def _said(
    item: Mapping[str, Any], one: ReplicaState, report: Mapping[str, Any]
) -> InProgress | None:
    since_s, attempt = numbers_of([item], "since_s"), numbers_of([item], "attempt")
    if not (since_s and attempt):
        return None
    place = next((int(number) + 1 for number in numbers_of([item], "place")), None)
    # Since it was written down the row has been there for as long again.
    return InProgress(
        str(item.get("state")),
        since_s[0] + one.seen_s,
        int(attempt[0]),
        place=place,
        waiting=max(place or 0, int(summed([report], "queued") or 0)),
        starts_in_s=None if place is None else _starts_in_s(place, report),
    )


def _starts_in_s(place: int, report: Mapping[str, Any]) -> float | None:
    """Estimate when the row at `place` has a worker: by the rate, else by the median attempt."""
    if rate := summed([report], "settled_s"):
        return place / rate
    workers, took_s = summed([report], "workers"), summed([report], "p50_s")
    return place * took_s / workers if workers and took_s else None


# ---------------------------------------------------------------- lines


YES, NO, UNKNOWN, NOTHING = "yes", "no", "?", "\N{EN DASH}"
NAME_WIDTH: Final = 10
ANSWER_WIDTH: Final = 6
NAMES_MAX: Final = 5
TABLE_REPLICAS: Final = "without rowlock_replicas nobody knows: insight_tables(metadata)"
TABLE_CONTROLS: Final = "without rowlock_controls nobody can pause: insight_tables(metadata)"


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    name: str
    answer: str
    detail: str = ""

    def text_lines(self, width: int) -> list[str]:
        answer = self.answer.ljust(ANSWER_WIDTH) if self.detail else self.answer
        if self.detail and len(self.answer) >= ANSWER_WIDTH:
            answer = f"{self.answer}  "
        label = f"  {self.name.ljust(NAME_WIDTH)}{answer}"
        if not self.detail:
            return [label]
        return wrapped(self.detail, label, width, indent=2 + NAME_WIDTH + ANSWER_WIDTH)


def lines_of(facts: Facts) -> tuple[ExplanationLine, ...]:
    lines = [
        ExplanationLine(name, *(answer(facts) if facts.table_lock is None else (UNKNOWN,)))
        for name, answer in _ASKED.items()
    ]
    lines.append(ExplanationLine("replicas", *_replicas(facts)))
    if facts.work:
        lines.append(ExplanationLine("work", *_work(facts)))
    if facts.wing is not None:
        lines.append(ExplanationLine(facts.wing.kind, shown(facts.wing.answer), facts.wing.detail))
    return tuple(lines)


def _answer(part: Answer) -> str:
    if part is None or isinstance(part, Refused):
        return UNKNOWN
    return YES if part else NO


def _refusal(part: object) -> str:
    return shown(part.why) if isinstance(part, Refused) else ""


def _ready(facts: Facts) -> tuple[str, ...]:
    detail = _refusal(facts.ready)
    if not detail:
        detail = facts.ready_text if facts.ready else false_part(facts)
    return _answer(facts.ready), detail


def _due(facts: Facts) -> tuple[str, ...]:
    return _answer(facts.due), _refusal(facts.due) or "; ".join(_when(facts))


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


def _lease(facts: Facts) -> tuple[str, ...]:
    if isinstance(facts.free, Refused):
        return UNKNOWN, _refusal(facts.free)
    ended_s = facts.since("lock_expires_at")
    if facts.column("lock_token") is None and ended_s is None:
        return ("free",)
    if facts.free:
        ended = "" if ended_s is None else f"{ago(ended_s)}, "
        return "ended", f"{ended}of {replica(facts)}"
    return "live", f"of {replica(facts)}, ends {ahead(-(ended_s or 0.0))}"


def _awaited(facts: Facts) -> tuple[str, ...]:
    parts = facts.unawaited.values()
    if not parts:
        return NOTHING, "no pipeline locks such rows"
    if False in parts:
        main = facts.awaiting
        return YES, "" if main is None else f"by {main.model} {shown(main.key)} ({main.pipeline})"
    return _no_unless_refused(parts)


def _no_unless_refused(parts: Iterable[Answer]) -> tuple[str, ...]:
    refused = next((part for part in parts if isinstance(part, Refused)), None)
    return (NO,) if refused is None else (UNKNOWN, _refusal(refused))


def _paused(facts: Facts) -> tuple[str, ...]:
    parts = facts.gates.values()
    if not parts:
        return UNKNOWN, TABLE_CONTROLS
    if False in parts:
        pause = facts.pause
        return YES, "" if pause is None else f"by {shown(pause.by)}: {shown(pause.reason)}"
    return _no_unless_refused(parts)


def _attempts(facts: Facts) -> tuple[str, ...]:
    last_s = facts.since("last_processed_at")
    last = "never processed" if last_s is None else f"last processed {ago(last_s)}"
    attempts = facts.columns.get("attempts")
    if isinstance(attempts, Refused):
        return UNKNOWN, _refusal(attempts)
    if attempts is None:
        return NOTHING, last
    of = facts.rules.max_attempts
    return str(attempts), f"of {of}; {last}" if of else last


def _replicas(facts: Facts) -> tuple[str, ...]:
    presence = facts.presence
    if presence is None:
        return UNKNOWN, shown(facts.no_replicas) or TABLE_REPLICAS
    run = named_first([shown(name) for name in presence.running], NAMES_MAX)
    return str(len(presence.running)), f"run it: {run}" if run else "none runs it"


def _work(facts: Facts) -> tuple[str, ...]:
    work, deadline = facts.work, facts.column("deadline_at")
    told = [
        f"{name} {shown(work[name])}"
        for name in ("worker", "progress", "losses")
        if work.get(name) not in (None, "")
    ]
    if deadline is not None and facts.at is not None:
        told.append(f"deadline {clock_time(deadline, now=facts.at)}")
    return shown(work.get("status") or UNKNOWN), "; ".join(told)


_ASKED: Final[Mapping[str, Callable[[Facts], tuple[str, ...]]]] = {
    "ready": _ready,
    "due": _due,
    "lease": _lease,
    "owner": lambda facts: (shown(facts.column("lock_owner") or "nobody"),),
    "awaited": _awaited,
    "paused": _paused,
    "attempts": _attempts,
}
"""What is asked of the row, each with the answer and its details."""


# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.explanation/1"
REFERENCE: Final = "docs/reference/verdicts.md"
_COMMAND: Final = re.compile(r"rowlock [a-z]+ .*$|SELECT .*$|ROLLBACK PREPARED .*$", re.DOTALL)
"""What a person copies, at the end of what to do."""
_KEYS: Final = (
    *("pipeline", "verdict", "headline", "needs_person", "lines", "parts", "why", "do"),
    *("also", "more", "remarks"),
)
WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The lease of a row as it was shown: an action is done only if it is still this one."""

    owner: str | None
    token: str | None
    ends_in_s: float | None = None

    @classmethod
    def of(cls, facts: Facts) -> Self:
        token, ended_s = facts.column("lock_token"), facts.since("lock_expires_at")
        return cls(
            facts.column("lock_owner"),
            None if token is None else str(token),
            None if ended_s is None else -ended_s,
        )


@dataclass(frozen=True, slots=True)
class PipelineExplanation:
    """Why one pipeline does not work on a row.

    Attributes:
        pipeline: its name; empty where no pipeline works on the model.
        parts: of the condition of a claim: whether each lets the row be claimed; None if that is
            unknown.
        remarks: what does not keep it and is to be mended.
    """

    pipeline: str
    verdict: Verdict
    headline: str
    needs_person: bool
    why: str
    do: str
    lines: tuple[ExplanationLine, ...] = ()
    parts: Mapping[str, bool | None] | None = None
    also: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Facts, *, remarks: Iterable[str] = ()) -> Self:
        first, *others = verdicts_of(facts)
        finding = finding_of(first, facts)
        return cls(
            facts.pipeline,
            first,
            finding.headline,
            needs_person(first, facts),
            finding.why,
            finding.do,
            lines=lines_of(facts) if facts.is_there else (),
            parts=_parts(facts) if facts.is_there else None,
            also=tuple(finding_of(other, facts).headline for other in others),
            remarks=tuple(remarks),
        )

    @property
    def more(self) -> str:
        return f"{REFERENCE}#{self.verdict.value.replace('_', '-')}"

    def to_dict(self) -> dict[str, Any]:
        told = to_jsonable_python(self) | {"more": self.more}
        return {name: told[name] for name in _KEYS}

    def text_lines(self, width: int) -> list[str]:
        text = [*wrapped(self.headline, "", width), ""]
        if self.lines:
            text += [*(row for line in self.lines for row in line.text_lines(width)), ""]
        text += wrapped(self.why, "why   ", width) + _with_command(self.do, width)
        for headline in self.also:
            text += wrapped(headline, "also  ", width)
        text += wrapped(self.more, "more  ", width)
        return text + [row for remark in self.remarks for row in wrapped(remark, "! ", width)]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a row waits, for each pipeline of its model.

    Attributes:
        lease: by which an action tells whether it is still the same; None if there is no such row.
        pipelines: one for each pipeline of the model, but for those of `away`.
        away: databases with such rows that could not be asked.
    """

    model: str
    row_id: str
    at: datetime | None
    lease: SeenLease | None
    pipelines: tuple[PipelineExplanation, ...]
    away: tuple[AwayDatabase, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether one of them waits until a person does something, or a database is away."""
        return bool(self.away) or any(one.needs_person for one in self.pipelines)

    @property
    def is_there(self) -> bool:
        return any(one.verdict is not Verdict.NO_ROW for one in self.pipelines)

    def text(self, width: int = WIDTH) -> str:
        width = max(WIDTH_MIN, width)
        blocks = []
        for one in self.pipelines:
            name = f"{self.model} {shown(self.row_id)}"
            title = f"{name} · {one.pipeline}" if one.pipeline else name
            blocks.append("\n".join(_title(title, self.at, width) + one.text_lines(width)))
        blocks += ["\n".join(wrapped(one.text, "! ", width)) for one in self.away]
        return "\n\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "row_id": self.row_id,
            "at": iso(self.at),
            "needs_person": self.needs_person,
            "lease": to_jsonable_python(self.lease),
            "pipelines": [one.to_dict() for one in self.pipelines],
            "away": [one.to_dict() for one in self.away],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave, whatever keys came later; raises ValueError if it is none."""
        if document.get("schema") != SCHEMA:
            raise ValueError(
                f"an explanation has the schema {SCHEMA!r}, not {document.get('schema')!r:.100}"
            )
        return TypeAdapter(cls).validate_python(document)


def explanation_without_pipeline(model: str, row_id: str) -> Explanation:
    finding = no_pipeline(model, row_id)
    one = PipelineExplanation(
        "", Verdict.NO_PIPELINE, finding.headline, needs_person=True, why=finding.why, do=finding.do
    )
    return Explanation(model, row_id, None, None, (one,))


def _parts(facts: Facts) -> dict[str, bool | None]:
    parts = {"ready": facts.ready, "free": facts.free, "mine": facts.mine, "due": facts.due}
    # Only of a session that hides rows.
    parts |= {} if facts.seen is True else {"seen": facts.seen}
    parts |= {f"unawaited by {name}": part for name, part in facts.unawaited.items()}
    parts |= {f"gate {name}": part for name, part in facts.gates.items()}
    return {name: None if isinstance(part, Refused) else part for name, part in parts.items()}


def _title(title: str, at: datetime | None, width: int) -> list[str]:
    if at is None:
        return wrapped(title, "", width)
    when = by_the_database(at)
    if len(title) + 2 + len(when) <= width:
        return [title + when.rjust(width - len(title))]
    return [*wrapped(title, "", width), *wrapped(when, "", width)]


def _with_command(do: str, width: int) -> list[str]:
    """Wrap what to do; a command stays on one line, since a space would name another row."""
    found = _COMMAND.search(do)
    if found is None:
        return wrapped(do, "do    ", width)
    whole = f"do    {do}"
    if len(whole) <= width:
        return [whole]
    before = do[: found.start()].rstrip()
    return [*(wrapped(before, "do    ", width) if before else []), f"      {found[0]}"]
