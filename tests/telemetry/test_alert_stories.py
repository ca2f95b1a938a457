"""Each alert fires on its story, and not before: judged by Prometheus itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .promtool import findings_of
from .test_shipped_queries import ALERTS

PIPELINE = {"pipeline": "VolumePipeline"}
WEB = {"instance": "web-7"}


@dataclass(frozen=True)
class Story:
    """What is scraped once a minute, and when somebody is woken.

    Attributes:
        alert: its name, without ``Rowlock``.
        series: by name with labels, the values in the notation of promtool.
        quiet_at: the last minute in which nobody is.
        fires_at: a minute in which somebody is.
        labels: of the alert.
    """

    alert: str
    series: dict[str, str]
    quiet_at: int
    fires_at: int
    labels: dict[str, str] = field(default_factory=dict)


def of(name: str, **labels: str) -> str:
    texts = (f'{label}="{value}"' for label, value in {**PIPELINE, **labels}.items())
    return f"rowlock_{name}{{{', '.join(texts)}}}"


STORIES = (
    Story("LeasesLost", {of("leases_lost_total"): "0x10 1x30"}, 10, 12, PIPELINE),
    Story("Abandoned", {of("abandoned"): "0x4 1x30"}, 14, 16, PIPELINE),
    Story("LoopReplaced", {of("loops_replaced_total"): "3x10 4x30"}, 10, 12, PIPELINE),
    Story(
        "LoopLate",
        {of("loop_late_seconds", loop="fetcher"): "30x5 31x30"},
        6,
        8,
        {**PIPELINE, "loop": "fetcher"},
    ),
    Story("ClockSkew", {'rowlock_clock_skew_seconds{instance="web-7"}': "-5x5 -6x30"}, 15, 17, WEB),
    Story(
        "StaleRate",
        {
            of("outcomes_total", outcome="stale"): "0+4x60",
            of("outcomes_total", outcome="changed"): "0+2x60",
            of("attempts_total"): "0+100x60",
        },
        15,
        20,
        PIPELINE,
    ),
    Story(
        "Parked",
        {of("outcomes_total", outcome="parked"): "7x10 8x30"},
        10,
        12,
        {**PIPELINE, "outcome": "parked"},
    ),
    Story(
        "PickupLate",
        {
            of("pickup_seconds_bucket", le="300"): "0+10x60",
            of("pickup_seconds_bucket", le="1800"): "0+20x60",
            of("pickup_seconds_bucket", le="+Inf"): "0+20x60",
        },
        15,
        20,
        PIPELINE,
    ),
    Story("Unhealthy", {of("healthy", instance="web-7"): "1x5 0x30"}, 10, 12, {**PIPELINE, **WEB}),
    Story(
        "EventLoopLag",
        {'rowlock_event_loop_lag_seconds{instance="web-7"}': "1x5 1.2x30"},
        15,
        17,
        WEB,
    ),
    Story("PausedLong", {of("paused"): "0x5 1x300"}, 245, 247, PIPELINE),
    Story(
        "NobodyRuns",
        {of("replicas_running"): "1x5 0x60", of("due_rows"): "0x20 3x60"},
        25,
        27,
        PIPELINE,
    ),
    Story("OldestDue", {of("oldest_due_seconds"): "900x5 901x30"}, 10, 12, PIPELINE),
)
QUIET = (
    Story("StaleRate", {of("outcomes_total", outcome="stale"): "0+5x60"}, 60, 0),
    Story(
        "OldestDue",
        {of("oldest_due_seconds"): "3600x60", of("paused", instance="web-7"): "1x60"},
        60,
        0,
    ),
    Story("NobodyRuns", {of("replicas_running"): "0x60", of("due_rows"): "0x60"}, 60, 0),
    Story("Parked", {of("outcomes_total", outcome="parked"): "7x60"}, 60, 0),
)
"""What wakes nobody: few attempts, a pause, nothing that is due, rows that were parked before."""


def annotations(alert: str, labels: dict[str, str]) -> dict[str, str]:
    """Return those of an alert, with its labels filled in."""
    block = ALERTS.split(f"- alert: Rowlock{alert}\n")[1].split("- alert:")[0]
    found = dict(re.findall(r"(summary|command): >-\n +(.+)", block))
    return {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: labels.get(label[1], ""), text)
        for name, text in found.items()
    }


def expectation(story: Story, minute: int, *, fires: bool) -> dict[str, Any]:
    """Return what promtool is to see in a minute."""
    block = ALERTS.split(f"- alert: Rowlock{story.alert}\n")[1]
    [severity] = re.findall(r"severity: (\w+)", block)[:1]
    fired = {
        "exp_labels": {**story.labels, "severity": severity},
        "exp_annotations": annotations(story.alert, story.labels),
    }
    return {
        "eval_time": f"{minute}m",
        "alertname": f"Rowlock{story.alert}",
        "exp_alerts": [fired] if fires else [],
    }


def document(story: Story) -> dict[str, Any]:
    minutes = [expectation(story, story.quiet_at, fires=False)]
    if story.fires_at:
        minutes.append(expectation(story, story.fires_at, fires=True))
    return {
        "name": story.alert,
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in story.series.items()
        ],
        "alert_rule_test": minutes,
    }


def test_each_alert_fires_on_its_story_and_not_before(tmp_path: Path) -> None:
    """Nobody would be woken, or everybody every night."""
    told = {story.alert for story in STORIES}
    assert {f"Rowlock{name}" for name in told} == set(re.findall(r"- alert: (\w+)", ALERTS))
    assert findings_of(tmp_path, *map(document, STORIES + QUIET), rules=ALERTS) == ""


@pytest.mark.parametrize("change", [("> 900", "> 899"), ("> 900", "> 901"), ("for: 4h", "for: 3h")])
def test_planted_alert(tmp_path: Path, change: tuple[str, str]) -> None:
    """The test above would pass any threshold."""
    stories = [document(one) for one in STORIES if one.alert in {"OldestDue", "PausedLong"}]
    assert findings_of(tmp_path, *stories, rules=ALERTS.replace(*change)) != ""
