"""The verdict on a run: the one checker on what was committed, the host's own numbers, and the
traces in the world outside.

What may be doubled, and is only counted: a round of work whose replica was killed, frozen or cut
off before its outcome was written. What may not: a round that is applied twice, or applied without
having been worked on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..simulator.judge.attempt_rules import UNCOUNTED_AGAIN
from ..simulator.judge.checker import check
from ..simulator.judge.history import Change, RowState
from ..simulator.judge.state import is_outcome
from ..simulator.judge.timeline import timeline
from .host import ATTEMPTS_MAX, LOCK_TIMEOUT_S, sites_of
from .replicas import Replica

TAKEN_WITHIN = timedelta(seconds=30)
"""How long a lease that has ended may wait for somebody, while servers restart and replicas are
frozen.
"""
ROUND_TRIPS = 100
"""How many more of them than usual a row may have to wait for, until somebody takes it or work
on it is told to stop.
"""
OVERLAP_S_MAX = LOCK_TIMEOUT_S
"""How long two replicas that nobody froze may be at work on one row: a busy machine cancels
late, but not by that much.
"""


@dataclass
class Work:
    """A round of work in the world outside, as its replica left traces of it."""

    replica: Replica
    place: tuple[str, str]
    number: int
    token: str
    begun: float
    ended: float | None = None
    is_done: bool = False


@dataclass
class Verdict:
    """What was found.

    Attributes:
        wrongs: promises that were broken.
        figures: what was counted.
    """

    wrongs: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


def judge(changes: Sequence[Change], work: Sequence[Work], *, latency_s: float = 0.0) -> Verdict:
    """Judge a run that has settled, and whose replicas were all shut down; each of their round
    trips took `latency_s`.
    """
    verdict = Verdict()
    verdict.figures["changes"] = len(changes)
    violations = check(
        changes,
        settled=_is_settled,
        stopped=True,
        services_own=["wanted"],
        taken_within=TAKEN_WITHIN + timedelta(seconds=ROUND_TRIPS * latency_s),
        attempts_max=ATTEMPTS_MAX,
        lock_timeouts=dict.fromkeys(
            ("JobPipeline", "BatchPipeline"), timedelta(seconds=LOCK_TIMEOUT_S)
        ),
    )
    worked, before = {one.token for one in work}, {one.number: one.before for one in changes}
    for one in violations:
        # Each of several claims may die between its two statements; none of them worked.
        if one.text != UNCOUNTED_AGAIN or before[one.number].lock_token.hex in worked:
            verdict.wrongs.append(str(one))
    done = {(one.place, one.number, one.token) for one in work if one.is_done}
    rounds: Counter[tuple[str, str]] = Counter()
    for change in changes:
        for text in _misapplied(change, done, rounds):
            verdict.wrongs.append(
                f"{change.table} {change.key}, change {change.number}:"
                f" {text}\n{_story(changes, change)}"
            )
    verdict.wrongs += _touched_otherwise(changes, rounds)
    verdict.figures["rounds applied"] = rounds.total()
    verdict.figures["rounds of work done"] = len(done)
    verdict.figures["leases that ended under a holder"] = sum(map(_is_taken_over, changes))
    for first, second, overlap_s in _overlaps(work):
        verdict.figures["rounds of work at once"] += 1
        if overlap_s > OVERLAP_S_MAX:
            where = f"{first.place[0]} {first.place[1]}"
            verdict.wrongs.append(
                f"A3 broken: {first.replica.name} and {second.replica.name} worked on {where} at"
                f" once for {overlap_s:.1f} s"
            )
    return verdict


def read_work(folder: Path, replicas: Sequence[Replica]) -> list[Work]:
    found: list[Work] = []
    for replica in replicas:
        path = folder / f"{replica.name}.traces"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        open_: dict[str, Work] = {}
        for line in map(json.loads, lines):
            if line["what"] == "begun":
                place = (line["table"], str(line["key"]))
                open_[line["token"]] = one = Work(
                    replica, place, line["round"], line["token"], line["at"]
                )
                found.append(one)
            else:
                one = open_.pop(line["token"])
                one.ended, one.is_done = line["at"], line["what"] == "done"
    return found


def _is_settled(table: str, row: RowState) -> bool:
    return table == "sites" or row.values["done"] == row.values["wanted"]


def _misapplied(
    change: Change, done: set[tuple[tuple[str, str], int, str]], rounds: Counter[tuple[str, str]]
) -> Iterator[str]:
    before, after = change.before, change.after
    if before is None or after is None or "done" not in after.values:
        return
    if after.parked_at is not None:
        yield "was parked, though nothing fails for so long"
    was, became = before.values["done"], after.values["done"]
    if was == became:
        return
    place = (change.table, change.key)
    rounds[place] += 1
    token = before.lock_token
    if became != was + 1 or not is_outcome(change):
        yield f"done went from {was} to {became}"
    elif token is None or (place, became, token.hex) not in done:
        yield f"round {became} was applied, and no work for it was done under that token"


def _touched_otherwise(
    changes: Sequence[Change], rounds: Counter[tuple[str, str]]
) -> Iterator[str]:
    """Find sites that were not touched exactly once for each round that was applied to a batch
    of theirs.
    """
    last = {change.key: change.after for change in changes if change.table == "sites"}
    expected: Counter[str] = Counter()
    for (table, key), count in rounds.items():
        for site in sites_of(int(key)) if table == "batches" else ():
            expected[str(site)] += count
    for key, row in last.items():
        if row is not None and row.values["touched"] != expected[key]:
            story = timeline(changes, "sites", key)
            yield (
                f"site {key} was touched {row.values['touched']} times for {expected[key]}"
                f" rounds\n{story}"
            )


def _is_taken_over(change: Change) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or before.lock_token is None or after.lock_token is None:
        return False
    return before.lock_token != after.lock_token


def _overlaps(work: Sequence[Work]) -> Iterator[tuple[Work, Work, float]]:
    """Find rounds of one row that were worked on at once by holders that knew what time it was."""
    rows: defaultdict[Any, list[Work]] = defaultdict(list)
    for one in work:
        if one.replica.speed == 1 and one.ended is not None:
            rows[one.place].append(one)
    for one_row in rows.values():
        for first, second in pairwise(sorted(one_row, key=lambda one: one.begun)):
            assert first.ended is not None
            assert second.ended is not None
            overlap_s = min(first.ended, second.ended) - second.begun
            if overlap_s > 0 and not (_was_frozen(first) or _was_frozen(second)):
                yield first, second, overlap_s


def _was_frozen(work: Work) -> bool:
    assert work.ended is not None
    return any(work.begun <= until and work.ended >= since for since, until in work.replica.frozen)


def _story(changes: Sequence[Change], change: Change) -> str:
    return timeline(changes, change.table, change.key)
