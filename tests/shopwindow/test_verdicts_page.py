"""``docs/reference/verdicts.md``: a paragraph for each verdict, made of what the code says."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rowlock.__main__ import command_parser
from rowlock.insight.explanation import PipelineExplanation, explanation_without_pipeline
from rowlock.insight.verdicts import (
    AwaitingRow,
    Conjunct,
    Facts,
    InProgress,
    LackingRow,
    PipelinePause,
    Refused,
    Rules,
    RunningReplicas,
    TableLock,
    TouchingTransaction,
    Verdict,
)

from ..insight.shop import DEAD_TOKEN, NOW, TOKEN, at
from .pages import DOCS

PAGE = DOCS / "reference" / "verdicts.md"
RULES = Rules(
    timedelta(seconds=15),
    timedelta(seconds=1),
    timedelta(seconds=7),
    timedelta(seconds=6),
    timedelta(hours=1),
    20,
)
DUE = {"due_at": at(-1), "attempts": 0, "lock_token": None, "last_processed_at": None}
ROW = Facts(
    "Volume",
    "volumes",
    "17",
    "VolumePipeline",
    RULES,
    at=NOW,
    columns=DUE,
    ready=True,
    ready_text="status = 'submitted'",
    free=True,
    mine=True,
    due=True,
    rivals={"VolumePipeline": RULES, "BackupPipeline": RULES},
    lockers={"FleetPipeline": "Fleet"},
)
LEASED = DUE | {"lock_token": TOKEN, "lock_expires_at": at(21)}
FAILED = "gave up after 20 attempts: ConnectionError: cloud-7 refused"
TWO = RunningReplicas(2, ("web-7", "web-8"), names_by_mark={"3fa2c1d0": "web-7"})


def row(**changes: object) -> Facts:
    """Return a row that nothing keeps, but for what is given."""
    return replace(ROW, **changes)  # type: ignore[arg-type]


def columns(**changes: object) -> dict[str, object]:
    """Return the columns of a row that is due, but for what is given."""
    return {**DUE, **changes}


STORIES: dict[Verdict, tuple[Facts, ...]] = {
    Verdict.NO_ROW: (row(is_there=False),),
    Verdict.READY_FAILS: (row(ready=Refused("division by zero")),),
    Verdict.RUNNING: (
        row(free=False, columns=LEASED | {"lock_owner": "VolumePipeline"}),
        row(free=False, columns=LEASED | {"lock_owner": "VolumePipeline"}, presence=TWO),
        row(
            free=False,
            columns=LEASED | {"lock_owner": "VolumePipeline"},
            presence=TWO,
            in_progress=InProgress("running", 12.0, 3),
        ),
    ),
    Verdict.QUEUED: (
        row(
            free=False,
            columns=LEASED | {"lock_owner": "VolumePipeline"},
            presence=TWO,
            in_progress=InProgress("queued", 3.0, 1, place=4, waiting=12, starts_in_s=2.0),
        ),
    ),
    Verdict.HELD: tuple(
        row(free=False, columns=LEASED | {"lock_owner": owner})
        for owner in ("billing:7c1f02aa", "FleetPipeline:3", "BackupPipeline")
    ),
    Verdict.PARKED: (
        row(due=False, columns=columns(parked_at=at(-1373), attempts=20, last_error=FAILED)),
    ),
    Verdict.NOT_READY: (
        row(
            ready=False,
            conjuncts=(Conjunct("status = 'submitted'", holds=False, values="status is 'active'"),),
        ),
    ),
    Verdict.HIDDEN: (row(seen=False, seen_text="volumes.deleted_at IS NULL"),),
    Verdict.KEPT: tuple(
        row(mine=False, columns=columns(lock_owner=owner, last_processed_at=at(-3)))
        for owner in ("BackupPipeline", "OldPipeline")
    ),
    Verdict.RESTING: (
        row(due=False, columns=columns(due_at=at(41), attempts=3)),
        row(due=False, columns=columns(due_at=at(2755))),
        row(
            due=False,
            columns=columns(due_at=at(2), lock_owner="VolumePipeline"),
            lacking=LackingRow("Disk", "9", "billing:7c1f02aa"),
        ),
        row(due=False, columns={"last_processed_at": at(-6)}),
        row(
            due=False,
            columns=columns(due_at=at(41), last_error="capacity: no worker"),
            work={"status": "pending"},
        ),
    ),
    Verdict.AWAITED: (
        row(
            unawaited={"FleetPipeline": False},
            awaiting=AwaitingRow("Fleet", "3", "FleetPipeline", at(-12), 300.0),
        ),
    ),
    Verdict.PAUSED: (
        row(gates={"pause_gate": False}, pause=PipelinePause("alice", at(-740), "provider down")),
        row(gates={"at_night": False}),
    ),
    Verdict.NOBODY_RUNS: (
        row(columns=columns(due_at=at(-840)), presence=RunningReplicas(2)),
        row(columns=columns(due_at=at(-840)), presence=RunningReplicas(2, idle=1)),
        row(columns=columns(due_at=at(-840)), is_run=False),
    ),
    Verdict.CLAIMS_FAIL: (
        row(presence=replace(TWO, failing=2, error="TransactionTimeout: no answer")),
        row(due=Refused("column volumes.parked_at does not exist")),
    ),
    Verdict.LEFT_BY_DEAD: tuple(
        row(columns=columns(lock_token=DEAD_TOKEN, lock_expires_at=at(-ago), due_at=at(-900)))
        for ago in (14, 840)
    ),
    Verdict.TOUCHED: (
        row(touched=TouchingTransaction(4711, "idle", 840.0)),
        row(touched=TouchingTransaction(None, None, 840.0, "order-7", "alice")),
        row(table_lock=TableLock("volumes", TouchingTransaction(4711, "idle", 41.0), True)),
        row(table_lock=TableLock("volumes", TouchingTransaction(4712, "active", 41.0), False)),
    ),
    Verdict.IN_LINE: (
        row(place=117, presence=replace(TWO, claims_s=2.95, busy=20, workers=20)),
        row(place=117),
        row(),
        row(place=10_001),
        row(presence=replace(TWO, unreadable=3)),
    ),
}
BEGIN = """\
# Verdicts

What `rowlock explain MODEL ID` says of a row: the first of these that holds, in this order; what
else holds stands under `also`. The texts here are those of the code, for volume 17 at 03:14:05.
"""


def told(facts: Facts) -> PipelineExplanation:
    return PipelineExplanation.of(facts)


def page() -> str:
    return "\n".join([BEGIN, *(paragraph(verdict) for verdict in Verdict)])


def paragraph(verdict: Verdict) -> str:
    if verdict is Verdict.NO_PIPELINE:
        stories = list(explanation_without_pipeline("Volume", "17").pipelines)
    else:
        stories = [told(facts) for facts in STORIES[verdict]]
    whys = dict.fromkeys(story.why for story in stories)
    actions = dict.fromkeys(story.do for story in stories)
    persons = {story.needs_person for story in stories}
    needs = "it depends" if len(persons) > 1 else "yes" if True in persons else "no"
    return "\n".join(
        [
            f"## `{verdict.value.replace('_', '-')}`\n",
            "```text",
            *dict.fromkeys(story.headline for story in stories),
            "",
            *(f"why   {why}" for why in whys),
            *(f"do    {action}" for action in actions),
            "```\n",
            f"Needs a person: {needs}.\n",
        ]
    )


def test_the_page_is_what_the_code_says(pytestconfig: pytest.Config) -> None:
    """A person would look a verdict up and read something else than the terminal said."""
    if pytestconfig.getoption("--renew-pages"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_guide_shows_what_a_terminal_shows() -> None:
    """A person would compare the own terminal with a text of long ago."""
    golden = Path(__file__).parents[1] / "insight" / "golden" / "parked.txt"
    guide = DOCS / "how-to" / "explain-a-row.md"
    assert golden.read_text(encoding="utf-8") in guide.read_text(encoding="utf-8")


@pytest.mark.parametrize("verdict", STORIES)
def test_each_story_has_its_verdict(verdict: Verdict) -> None:
    """The page would show the texts of another verdict."""
    for facts in STORIES[verdict]:
        explanation = told(facts)
        assert explanation.verdict is verdict
        assert f"#{explanation.more.partition('#')[2]}" == f"#{verdict.value.replace('_', '-')}"


@pytest.mark.parametrize("verdict", STORIES)
def test_each_command_that_is_named_can_be_typed(verdict: Verdict) -> None:
    """A person would copy a command at night, and be told of wrong usage."""
    for facts in STORIES[verdict]:
        found = re.search(r"rowlock ([a-z]+ .*)$", told(facts).do)
        if found is None:
            continue
        words = shlex.split(found[1].replace("MODULE:ATTRIBUTE", "a:b"))
        options = command_parser().parse_args(words)
        assert callable(options.run)
