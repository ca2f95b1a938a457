"""What a host passes, checked: the settings of a flow beside those of every pipeline, and names,
numbers of steps and time limits at run time.

What passes here is stored or compared by every database in the same way; what does not would be a
driver's error at one of them, and a row that means nothing at another.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rowlock import SettingsKeywords
from rowlock.errors import ConfigurationError, SettingsError
from rowlock.pipelines.settings import MEANT_ALIKE, nearest
from rowlock.spi import DURATION_MAX
from rowlock.streams.computing.hashing import is_storable
from rowlock.streams.cut_plan import DIRTY_KEYS_MAX, STEP_BYTES_MAX, STEP_ROWS_MAX, STEPS_AHEAD_MAX
from rowlock.streams.tables import NAME_CHARS_MAX

ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 40
KEYS_MAX: Final = 100_000_000
AHEAD_MAX: Final = 10_000
FAILURES_MAX: Final = 1_000

_Duration = Annotated[timedelta, Field(gt=timedelta(0), le=DURATION_MAX)]


class FlowSettings(BaseModel):
    """The settings of one flow; each is a keyword where the flow is declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_rows_max: Annotated[int, Field(ge=1, le=ROWS_MAX)] = STEP_ROWS_MAX
    """Most rows that a step takes, over all shards; one of each source at least."""
    step_bytes_max: Annotated[int, Field(ge=1, le=BYTES_MAX)] = STEP_BYTES_MAX
    """And most bytes of what may be long in these: texts, bytes and JSON. A row that has more is
    taken all the same.
    """
    steps_ahead_max: Annotated[int, Field(ge=1, le=AHEAD_MAX)] = STEPS_AHEAD_MAX
    """No step is cut further ahead of the slowest shard that is held and not parked; steps grow
    instead.
    """
    failures_max: Annotated[int, Field(ge=1, le=FAILURES_MAX)] = 5
    """A shard that has failed so often at one step is parked."""
    cached_keys_max: Annotated[int, Field(ge=1, le=KEYS_MAX)] = 100_000
    """So many states are kept in memory between steps, in each replica: of all its shards and their
    stages together. There are more only where more are not written yet.
    """
    dirty_keys_max: Annotated[int, Field(ge=1, le=KEYS_MAX)] = DIRTY_KEYS_MAX
    """With so many states in a replica that are not written, a checkpoint is requested: all shards
    write theirs with the next step that is cut.
    """
    poll_interval: _Duration = timedelta(seconds=5)
    """Longest rest of a replica that has nothing to do and gets no hint, before it looks for rows
    and steps. Its rests grow up to that while it finds nothing.
    """
    keep: _Duration = timedelta(days=7)
    """How long steps are kept that no shard needs any more."""


class FlowKeywords(SettingsKeywords, total=False):
    """The keywords for the settings of a flow and of its pipelines; a number is seconds where a
    duration is meant.
    """

    step_rows_max: int
    step_bytes_max: int
    steps_ahead_max: int
    failures_max: int
    cached_keys_max: int
    dirty_keys_max: int
    poll_interval: timedelta | float
    keep: timedelta | float


_NAMES = frozenset(FlowSettings.model_fields)
_KEYWORDS = FlowKeywords.__optional_keys__ | {"shards", "checkpoint", "start", "version"}
"""All keywords with which a flow is declared."""


def flow_settings(flow: str, values: FlowKeywords) -> tuple[FlowSettings, dict[str, Any]]:
    """Return the settings of a flow, and the others, which are its pipelines'."""
    for unknown in values.keys() - _KEYWORDS:
        meant = nearest(unknown, _KEYWORDS, alike=MEANT_ALIKE)
        raise SettingsError(
            f"flow {flow}: no setting is named {unknown}"
            + (f"; {meant} is meant" if meant else f"; there are {', '.join(sorted(_KEYWORDS))}"),
            pipeline=flow,
            settings=(unknown,),
        )
    own: dict[str, Any] = {key: value for key, value in values.items() if key in _NAMES}
    rest = {key: value for key, value in values.items() if key not in _NAMES}
    try:
        return FlowSettings(**own), rest
    except ValidationError as error:
        names = tuple(dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()))
        text = "; ".join(
            f"{problem['loc'][0]} = {problem['input']!r}: {problem['msg']}"
            for problem in error.errors()
        )
        raise SettingsError(f"flow {flow}: {text}", pipeline=flow, settings=names) from None


NUMBER_MAX: Final = 2**63 - 1
"""Highest number of a step, a position, or an append of a producer."""


def check_party(name: object, of: str) -> None:
    """Refuse what cannot be the name of a producer or a consumer."""
    if not (isinstance(name, str) and 1 <= len(name) <= NAME_CHARS_MAX and is_storable(name)):
        raise ConfigurationError(
            f"the name of {of} is a text of 1 to {NAME_CHARS_MAX} characters, all of which a"
            f" database can store, not {name!r:.100}"
        )


def check_whole_number(number: object, of: str, *, low: int = 0) -> None:
    """Refuse what is no whole number from `low` to `NUMBER_MAX`."""
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not (is_whole and low <= number <= NUMBER_MAX):  # type: ignore[operator]
        raise ConfigurationError(
            f"{of} is {low} to {NUMBER_MAX}, a whole number, not {number!r:.100}"
        )


def seconds_of(timeout: timedelta | float) -> float:
    """Return a time limit in seconds; less than none is none."""
    seconds: object = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or math.isnan(seconds):  # type: ignore[arg-type]
        raise ConfigurationError(
            f"timeout is a number of seconds or a timedelta, not {timeout!r:.100}"
        )
    return max(0.0, float(seconds))  # type: ignore[arg-type]
