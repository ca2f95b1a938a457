"""The tables in ``docs/reference/settings.md`` say what `PipelineSettings` and `FlowSettings` do:
every setting, default and bound.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from rowlock import Pipeline, PipelineSettings, SettingsError
from rowlock.pipelines.settings import build_settings
from rowlock.streams.settings import FlowSettings

from .pages import DOCS

PAGE = DOCS / "reference" / "settings.md"
_ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<default>[^|]+) \| (?P<bounds>[^|]+) \| (?P<meaning>[^|]+) \|$",
    re.MULTILINE,
)
DERIVED = {
    "heartbeat_trigger": "`lock_timeout` / 2",
    "lease_margin": "`lock_timeout` / 10",
    "heartbeat_interval": "`heartbeat_trigger` / 15",
    "renew_timeout": "`heartbeat_trigger` / 3",
    "stall_limit": "10 × `lock_timeout`",
    "orphaned_after": "10 × `lock_timeout`",
}
"""Settings whose default follows from another one: how the page says it."""
FIELDS = PipelineSettings.model_fields | FlowSettings.model_fields


def rows() -> dict[str, re.Match[str]]:
    """Return the table's rows by the name of the setting."""
    return {row["name"]: row for row in _ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def text_of(value: Any) -> str:
    match value:
        case None:
            return "none"
        case timedelta():
            return duration(value)
        case tuple():
            return f"({', '.join(f'{delay.total_seconds():g}' for delay in value)}) s"
        case _:
            return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def duration(value: timedelta) -> str:
    """Return a duration in the largest unit that divides it."""
    for unit, one in (
        ("d", timedelta(days=1)),
        ("h", timedelta(hours=1)),
        ("min", timedelta(minutes=1)),
    ):
        if value and not value % one:
            return f"{value // one} {unit}"
    return f"{value.total_seconds():g} s"


def bounds_of(field: FieldInfo) -> str:
    """Return the bounds of a setting as the page writes them."""
    metadata = [*nested_metadata(field.annotation), *field.metadata]
    signs = {
        annotated_types.Gt: ("gt", "> "),
        annotated_types.Ge: ("ge", "≥ "),
        annotated_types.Le: ("le", "≤ "),
    }
    texts = [
        sign + text_of(getattr(one, name))
        for one in metadata
        for kind, (name, sign) in signs.items()
        if type(one) is kind
    ]
    texts += [
        f"≤ {one.max_length} of them" for one in metadata if isinstance(one, annotated_types.MaxLen)
    ]
    return ", ".join(
        "> 0" if text == "> 0 s" else "≥ 0" if text == "≥ 0 s" else text for text in texts
    )


def nested_metadata(annotation: Any) -> list[Any]:
    """Return the constraints inside an annotation, such as those of ``tuple[Annotated[...],
    ...]``.
    """
    arguments = getattr(annotation, "__args__", ())
    fields = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, FieldInfo)]
    return [one for field in fields for one in field.metadata] + [
        one for argument in arguments for one in nested_metadata(argument)
    ]


def test_every_setting_has_a_row() -> None:
    """A setting would be known only to who reads the code, or a row would promise one that is
    gone.
    """
    assert list(rows()) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_row_is_true(name: str) -> None:
    """Somebody would plan with a default or bound that is not so."""
    row, field = rows()[name], FIELDS[name]
    assert row["default"] == (DERIVED.get(name) or text_of(field.default))
    assert row["bounds"] == bounds_of(field)
    assert row["meaning"].strip()


@pytest.mark.parametrize("name", DERIVED)
def test_derived_default_is_true(name: str) -> None:
    """Somebody would plan with a default that follows from something else."""
    first, operator, second = DERIVED[name].replace("`", "").split()
    settings = build_settings("P", {})
    factor, other = (float(first), second) if operator == "×" else (1 / float(second), first)
    assert getattr(settings, name) == getattr(settings, other) * factor


@pytest.mark.parametrize("name", PipelineSettings.model_fields)
def test_pipeline_has_the_same_default(name: str) -> None:
    """The page would be right about the settings and wrong about pipelines."""
    values = {name: getattr(Pipeline, name)}
    assert getattr(build_settings("P", values), name) == getattr(PipelineSettings(), name)


def test_example_of_the_budget_is_true() -> None:
    """The page's example would be refused, or its counter-example accepted."""
    build_settings("P", {"lock_timeout": 10, "heartbeat_trigger": 5})
    with pytest.raises(SettingsError, match="leaves no room"):
        build_settings("P", {"lock_timeout": 30, "heartbeat_trigger": 5})
