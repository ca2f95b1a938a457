"""Tests of schedules: the next occurrence, also where clocks are changed, in three time zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from rowlock import Cron, Schedule, SettingsError

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


CHANGES: dict[str, tuple[str, str, str, list[str]]] = {
    # Clocks go forward at 02:00: 02:30 does not exist.
    "Berlin, no such hour": (
        BERLIN,
        "30 2 * * *",
        "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
    ),
    "New York, no such hour": (
        NEW_YORK,
        "30 2 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
    ),
    "Lord Howe, no such half hour": (
        LORD_HOWE,
        "15 2 * * *",
        "2026-10-03T12:00+10:30",
        ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
    ),
    # Clocks go back: the hour is there twice, the occurrence once.
    "Berlin, twice": (
        BERLIN,
        "30 2 * * *",
        "2026-10-24T12:00+02:00",
        ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
    ),
    "New York, twice": (
        NEW_YORK,
        "30 1 * * *",
        "2026-10-31T12:00-04:00",
        ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
    ),
    "Lord Howe, twice": (
        LORD_HOWE,
        "45 1 * * *",
        "2026-04-04T12:00+11:00",
        ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
    ),
    # What goes on all the time goes on through both.
    "Berlin, every half hour through the second hour": (
        BERLIN,
        "*/30 * * * *",
        "2026-10-25T02:00+02:00",
        [
            "2026-10-25T02:30+02:00",
            "2026-10-25T02:00+01:00",
            "2026-10-25T02:30+01:00",
            "2026-10-25T03:00+01:00",
        ],
    ),
    "New York, hourly over the gap": (
        NEW_YORK,
        "0 * * * *",
        "2026-03-08T00:30-05:00",
        ["2026-03-08T01:00-05:00", "2026-03-08T03:00-04:00"],
    ),
    "Berlin, at three, as ever": (
        BERLIN,
        "0 3 * * *",
        "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T03:00+02:00"],
    ),
}


@pytest.mark.parametrize(("zone", "expression", "start", "expected"), CHANGES.values(), ids=CHANGES)
def test_clocks_that_change(zone: str, expression: str, start: str, expected: list[str]) -> None:
    """A nightly report would be left out, or be written twice, two nights of the year."""
    cron, now, found = Cron(expression, zone), _at(start), []
    for _ in expected:
        now = cron.next_after(now)
        found.append(now)
    assert found == [_at(text) for text in expected]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
@pytest.mark.parametrize("expression", ["30 2 * * *", "45 1 * * *", "*/20 1,2 * * *", "0 * * * *"])
def test_an_occurrence_never_lies_behind(zone: str, expression: str) -> None:
    """A row that took until the second of two equal hours would be due again at once."""
    cron = Cron(expression, zone)
    for month, day in ((3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1)):
        start = datetime(2026, month, day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for minutes in range(0, 6 * 60, 7):
            now = start + timedelta(minutes=minutes)
            for given in (now, now.astimezone(ZoneInfo(zone))):
                due_at = cron.next_after(given)
                assert due_at > now
                assert due_at.tzinfo is UTC


def test_an_occurrence_that_is_now_is_over() -> None:
    """A row that is worked on at once would be due again at the same moment."""
    at_three = datetime(2026, 5, 1, 3, tzinfo=UTC)
    assert Cron("0 3 * * *").next_after(at_three) == at_three + timedelta(days=1)


@pytest.mark.parametrize(
    ("expression", "zone", "says"),
    [
        ("61 * * * *", "UTC", "is no cron expression"),
        ("daily", "UTC", "is no cron expression"),
        ("", "UTC", "is no cron expression"),
        ("0 0 31 2 *", "UTC", "is no cron expression|never occurs"),
        ("0 3 * * *", "Europe/Atlantis", "no time zone"),
        ("0 3 * * *", "../../etc/passwd", "no time zone"),
        ("0 3 * * *", "", "no time zone"),
        (5, "UTC", "takes texts"),
        ("0 3 * * *", ZoneInfo("UTC"), "takes texts"),
    ],
)
def test_what_is_no_schedule_is_refused_when_it_is_made(
    expression: str, zone: str, says: str
) -> None:
    """It would be found at night, when the first row is due."""
    with pytest.raises(SettingsError, match=says):
        Cron(expression, zone)


def test_it_is_a_schedule() -> None:
    """A pipeline would refuse it."""
    assert isinstance(Cron("0 3 * * *"), Schedule)
    assert Cron("0 3 * * *", BERLIN) == Cron("0 3 * * *", BERLIN)
