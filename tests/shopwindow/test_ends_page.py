"""``docs/design/what-ends-what.md`` says after how long, as the defaults do."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from rowlock import PipelineSettings
from rowlock.dispatch.engines.process import PROCESS_END_S_MAX, START_S_MAX
from rowlock.dispatch.settings import DispatchSettings

from .pages import DOCS

PAGE = (DOCS / "design" / "what-ends-what.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(\w+)`, (\d+) (s|min|h)\b")
UNITS = {"s": timedelta(seconds=1), "min": timedelta(minutes=1), "h": timedelta(hours=1)}
SAID = {(name, int(number) * UNITS[unit]) for name, number, unit in NAMED.findall(PAGE)}
SETTINGS = PipelineSettings().model_dump() | DispatchSettings().model_dump()


def test_defaults_were_found() -> None:
    """The test below would compare nothing."""
    assert {"process_timeout", "cancel_grace", "time_limit"} <= {name for name, _ in SAID}


@pytest.mark.parametrize(("name", "said"), sorted(SAID))
def test_default_is_that_of_the_settings(name: str, said: timedelta) -> None:
    """Whoever waits for a hung process would wait for another time."""
    assert SETTINGS[name] == said


@pytest.mark.parametrize("limit_s", [START_S_MAX, PROCESS_END_S_MAX])
def test_limits_of_processes_are_said(limit_s: float) -> None:
    """The two limits that no setting moves would be found in the code alone."""
    assert f"| {limit_s:g} s |" in PAGE
