"""The table of knobs in ``docs/how-to/dispatch.md`` says what `DispatchSettings` does: every
knob, default and bound.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from rowlock import Pipeline
from rowlock.dispatch import DispatchPipeline
from rowlock.dispatch.settings import DispatchSettings
from rowlock.pipelines.settings import SETTING_NAMES

from .pages import DOCS
from .test_settings_page import bounds_of, text_of

PAGE = (DOCS / "how-to" / "dispatch.md").read_text(encoding="utf-8")
KNOBS = PAGE[PAGE.index("## Knobs") : PAGE.index("## What happens when")]
_ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<default>[^|]+) \|(?P<bounds>[^|]*)\| (?P<meaning>[^|]+) \|$",
    re.MULTILINE,
)
DERIVED = {"heartbeat_limit": "3 × `heartbeat`", "stale_after": "10 × `lock_timeout`"}
ROWS = {row["name"]: row for row in _ROW.finditer(KNOBS)}


def test_every_knob_has_a_row() -> None:
    """A knob would be known only to who reads the code, or a row would promise one that is gone."""
    assert list(ROWS) == list(DispatchSettings.model_fields)


@pytest.mark.parametrize("name", DispatchSettings.model_fields)
def test_row_is_true(name: str) -> None:
    """Somebody would plan with a default or bound that is not so."""
    row, field = ROWS[name], DispatchSettings.model_fields[name]
    assert row["default"] == (DERIVED.get(name) or text_of_knob(field.default))
    assert row["bounds"].strip() == bounds_of(field)


def text_of_knob(value: Any) -> str:
    return str(value) if isinstance(value, bool) else text_of(value)


def test_defaults_that_are_others_are_named() -> None:
    """Somebody would plan with the defaults of the base."""
    others = {
        name for name in SETTING_NAMES if getattr(DispatchPipeline, name) != getattr(Pipeline, name)
    }
    sentence = KNOBS[KNOBS.index("Some defaults of the base") :]
    assert set(re.findall(r"`(\w+)`", sentence)) & set(SETTING_NAMES) == others | {
        "process_timeout"
    }
    for name in others:
        value = getattr(DispatchPipeline, name)
        assert (
            f"`{name}` {0 if isinstance(value, timedelta) and not value else text_of(value)}"
            in sentence
        )
