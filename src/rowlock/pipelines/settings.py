"""A pipeline's settings: names, defaults, bounds, and what must hold between them.

`PipelineSettings` says it all. Type checkers and editors cannot read that, so names and types stand
here twice more; a test compares. Durations are `timedelta`; a plain number is seconds.

The timing budget. Trust in a lease ends at ``lock_timeout - lease_margin`` after the last confirmed
claim or renewal was sent. Renewal starts when `heartbeat_trigger` is left of the lease. Within
``heartbeat_trigger - lease_margin`` there must be room for two beats, each late by the jitter, and
one renewal that takes all its time: so one failed renewal loses no lease.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Any, TypedDict

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from rowlock.clock import JITTER
from rowlock.errors import SettingsError
from rowlock.rows.lock_tokens import DEATHS_MAX

WORKERS_MAX = 10_000
QUEUE_FACTOR_MAX = 1_000.0
DURATION_MAX = timedelta(days=366)
FETCH_DELAYS_MAX = 32
ATTEMPTS_MAX = 1_000_000

_Duration = Annotated[timedelta, Field(gt=timedelta(0), le=DURATION_MAX)]
_DurationOrZero = Annotated[timedelta, Field(ge=timedelta(0), le=DURATION_MAX)]


_DERIVED: Any = Field(default=None, validate_default=True)
"""None, also when it is given, becomes a default that depends on another setting."""


class PipelineSettings(BaseModel):
    """The settings of one pipeline; each is a class attribute of `Pipeline` and a keyword of its
    constructor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers_num: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 10
    """How many rows are processed at once."""
    queue_lower_limit_factor: Annotated[float, Field(ge=0.0, le=QUEUE_FACTOR_MAX)] = 0.5
    """The fetcher fetches when fewer than this many items per worker are queued; in a queue that
    has grown, in proportion.
    """
    queue_upper_limit_factor: Annotated[float, Field(ge=0.0, le=QUEUE_FACTOR_MAX)] = 2.0
    """At most this many items per worker are queued. 0: a row is claimed only for a worker that is
    idle.

    A pipeline that sets neither factor has more queued, 500 rows at most, while rows start at once.
    """
    min_processing_interval: _DurationOrZero = timedelta(seconds=15)
    """A row is not processed again sooner than this after it was processed."""
    lock_timeout: _Duration = timedelta(seconds=30)
    """How long a lease lasts that is not renewed: how long the rows of a dead replica wait."""
    heartbeat_trigger: _Duration = _DERIVED
    """A lease is renewed when less than this is left of it. Default: half of `lock_timeout`."""
    fetch_delays: Annotated[
        tuple[_Duration, ...], Field(min_length=1, max_length=FETCH_DELAYS_MAX)
    ] = tuple(timedelta(seconds=value) for value in (0.5, 1, 2, 5))
    """Rests after the first, second, ... fetch in a row that found nothing; the last one
    repeats.
    """
    lease_margin: _Duration = _DERIVED
    """By how much a holder's trust ends before its lease. Default: a tenth of `lock_timeout`."""
    heartbeat_interval: _Duration = _DERIVED
    """How often the heartbeater looks. Default: a fifteenth of `heartbeat_trigger`."""
    renew_timeout: _Duration = _DERIVED
    """Longest time for one renewal. Default: a third of `heartbeat_trigger`."""
    database_timeout: _Duration = timedelta(seconds=10)
    """Longest time for any other transaction of the pipeline."""
    process_timeout: _Duration | None = timedelta(hours=1)
    """Longest time for one `process`; then it is cancelled and the attempt counts as failed. None:
    no limit, for work that goes on until it is asked to stop (`PipelineItem.wait_for_stop`).
    """
    cancel_grace: _Duration = timedelta(seconds=5)
    """How long a cancelled `process` may take to end before its worker goes on without it."""
    retry_delay: _Duration = timedelta(seconds=1)
    """Rest after the first failed attempt; it doubles with each further one (`ScheduleColumns`)."""
    retry_delay_max: _Duration = timedelta(minutes=5)
    """Longest rest after a failed attempt."""
    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] | None = None
    """After this many failed attempts in a row a row is parked (`ScheduleColumns`). None: never; it
    is tried again every `retry_delay_max`.
    """
    max_deaths: Annotated[int, Field(ge=1, le=DEATHS_MAX)] | None = 20
    """A row over which so many holders in a row have died is parked (`ScheduleColumns`). None:
    never.
    """
    stall_limit: _Duration = _DERIVED
    """How long leases are renewed while the host's event loop stands still. Default: ten times
    `lock_timeout`.
    """
    orphaned_after: _Duration = _DERIVED
    """Lock columns that were left behind are cleared after this. Default: ten times
    `lock_timeout`.
    """

    @field_validator(
        "heartbeat_trigger",
        "lease_margin",
        "heartbeat_interval",
        "renew_timeout",
        "stall_limit",
        "orphaned_after",
        mode="wrap",
    )
    @classmethod
    def derive(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Return for None the default that another setting gives, whatever its bounds."""
        if value is not None:
            return handler(value)
        lock_timeout = info.data.get("lock_timeout")
        # The trigger itself is derived first.
        trigger = info.data.get("heartbeat_trigger", lock_timeout)
        if lock_timeout is None or trigger is None:
            # One of these is invalid, and reported as such.
            return None
        return {
            "heartbeat_trigger": lock_timeout / 2,
            "lease_margin": lock_timeout / 10,
            "heartbeat_interval": trigger / 15,
            "renew_timeout": trigger / 3,
        }.get(str(info.field_name), lock_timeout * 10)

    @property
    def queue_capacity(self) -> int:
        """Most items in the queue: the high watermark."""
        return max(1, math.ceil(self.workers_num * (self.queue_upper_limit_factor or 1)))

    @property
    def queue_low_watermark(self) -> int:
        """The fetcher fetches when fewer items than this are queued."""
        wanted = math.ceil(self.workers_num * self.queue_lower_limit_factor)
        return min(self.queue_capacity, max(1, wanted))

    @property
    def fetch_delays_s(self) -> tuple[float, ...]:
        """`fetch_delays` in seconds."""
        return tuple(delay.total_seconds() for delay in self.fetch_delays)


Duration = timedelta | float
"""A `timedelta`, or a number of seconds."""


class SettingsKeywords(TypedDict, total=False):
    """The keywords of a pipeline's constructor, for type checkers and editors."""

    workers_num: int
    queue_lower_limit_factor: float
    queue_upper_limit_factor: float
    min_processing_interval: Duration
    lock_timeout: Duration
    heartbeat_trigger: Duration | None
    fetch_delays: Sequence[Duration]
    lease_margin: Duration | None
    heartbeat_interval: Duration | None
    renew_timeout: Duration | None
    database_timeout: Duration
    process_timeout: Duration | None
    cancel_grace: Duration
    retry_delay: Duration
    retry_delay_max: Duration
    max_attempts: int | None
    max_deaths: int | None
    stall_limit: Duration | None
    orphaned_after: Duration | None


class SettingsAttributes:
    """The class attributes of a pipeline, for type checkers and editors: as long as none is set,
    the defaults of the settings. `PipelineSettings` says what each means.
    """

    workers_num: int
    queue_lower_limit_factor: float
    queue_upper_limit_factor: float
    min_processing_interval: Duration
    lock_timeout: Duration
    heartbeat_trigger: Duration | None
    fetch_delays: Sequence[Duration]
    lease_margin: Duration | None
    heartbeat_interval: Duration | None
    renew_timeout: Duration | None
    database_timeout: Duration
    process_timeout: Duration | None
    cancel_grace: Duration
    retry_delay: Duration
    retry_delay_max: Duration
    max_attempts: int | None
    max_deaths: int | None
    stall_limit: Duration | None
    orphaned_after: Duration | None


ALIKE = 0.9
"""Names this much alike, by difflib's ratio, are taken for one that was misspelt."""
MEANT_ALIKE = 0.8
"""A keyword this much like a setting may be meant for it."""
SETTING_NAMES = tuple(PipelineSettings.model_fields)

for _name, _field in PipelineSettings.model_fields.items():
    setattr(SettingsAttributes, _name, _field.default)


def build_settings(pipeline: str, values: dict[str, Any]) -> PipelineSettings:
    """Validate `values` for the pipeline of that name."""
    try:
        settings = PipelineSettings(**values)
    except ValidationError as error:
        raise _as_settings_error(pipeline, error) from None
    for names, problem in _contradictions(settings):
        raise SettingsError(f"{pipeline}: {problem}", pipeline=pipeline, settings=names)
    return settings


NEED_SCHEDULE = ("retry_delay_max", "max_attempts", "max_deaths")
"""Settings that count failed attempts and deaths, which only `ScheduleColumns` remember."""


def check_has_effect(pipeline: str, settings: PipelineSettings, model: str) -> None:
    """Refuse settings that have no effect over a `model` without `ScheduleColumns`."""
    for name in NEED_SCHEDULE:
        value, default = getattr(settings, name), PipelineSettings.model_fields[name].default
        # The rest after a Reset must not be above it, with a schedule or without.
        is_bound = name == "retry_delay_max" and settings.retry_delay > default
        if value not in {None, default} and not is_bound:
            raise SettingsError(
                f"{pipeline}: {name} has no effect, since {model} has no ScheduleColumns; mix them"
                " in, or leave the setting out",
                pipeline=pipeline,
                settings=(name,),
            )


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Return which of the `known` names is meant by `name`; None if it is none of them."""
    names = sorted(known)
    words = _words(name)
    if len(words) > 1 and (same := [one for one in names if _words(one) == words]):
        return same[0]
    return next(iter(get_close_matches(name, names, n=1, cutoff=alike)), None)


def _words(name: str) -> list[str]:
    return sorted(word.removesuffix("s") for word in name.lower().split("_") if word)


def _as_settings_error(pipeline: str, error: ValidationError) -> SettingsError:
    problems = error.errors()
    names = tuple(dict.fromkeys(str(problem["loc"][0]) for problem in problems))
    unknown = [str(one["loc"][0]) for one in problems if one["type"] == "extra_forbidden"]
    if unknown:
        meant = nearest(unknown[0], SETTING_NAMES, alike=MEANT_ALIKE)
        text = (
            f"no setting is named {', '.join(unknown)}"
            f"{f'; {meant} may be meant' if meant else ''}; there are {', '.join(SETTING_NAMES)}"
        )
    else:
        text = "; ".join(
            f"{'.'.join(map(str, problem['loc']))} = {problem['input']!r}: {problem['msg']}"
            for problem in problems
        )
    return SettingsError(f"{pipeline}: {text}", pipeline=pipeline, settings=names)


def _contradictions(s: PipelineSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    two_beats_s = 2 * s.heartbeat_interval.total_seconds() * (1 + JITTER)
    needed = s.lease_margin + timedelta(seconds=two_beats_s) + s.renew_timeout
    told = {name: f"{name} ({_text(value)})" for name, value in s}
    lower, upper = "queue_lower_limit_factor", "queue_upper_limit_factor"
    if s.queue_lower_limit_factor > s.queue_upper_limit_factor:
        yield (
            (lower, upper),
            f"{told[lower]} is above {told[upper]}; lower the first or raise the second",
        )
    if s.heartbeat_trigger >= s.lock_timeout:
        yield (
            ("heartbeat_trigger", "lock_timeout"),
            f"{told['heartbeat_trigger']} must be less than {told['lock_timeout']}, or every lease"
            " would be renewed at every beat; half of lock_timeout is a good value",
        )
    if needed > s.heartbeat_trigger:
        yield (
            ("heartbeat_trigger", "lease_margin", "heartbeat_interval", "renew_timeout"),
            f"{told['heartbeat_trigger']} leaves no room for {told['lease_margin']} + two beats of"
            f" heartbeat_interval ({_text(s.heartbeat_interval)}, with jitter) +"
            f" {told['renew_timeout']} = {_text(needed)}; raise heartbeat_trigger or lower the"
            " others",
        )
    if s.retry_delay > s.retry_delay_max:
        yield (
            ("retry_delay", "retry_delay_max"),
            f"{told['retry_delay']} is above {told['retry_delay_max']}",
        )
    if s.stall_limit < s.lock_timeout:
        yield (
            ("stall_limit", "lock_timeout"),
            f"{told['stall_limit']} must not be less than {told['lock_timeout']}: so long a lease"
            " lasts anyway",
        )
    if s.orphaned_after <= s.lock_timeout:
        yield (
            ("orphaned_after", "lock_timeout"),
            f"{told['orphaned_after']} must be more than {told['lock_timeout']}: a lease that just"
            " expired belongs to its pipeline first",
        )


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return f"{value:g}" if isinstance(value, float) else str(value)
