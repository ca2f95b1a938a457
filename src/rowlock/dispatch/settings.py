"""The knobs of a dispatch pipeline beside those of every pipeline: names, defaults, bounds, and
what must hold between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from rowlock import PipelineSettings, SettingsKeywords
from rowlock.dispatch.engine import class_name
from rowlock.errors import SettingsError
from rowlock.pipelines.attempt import ErrorRule, RetryOn
from rowlock.pipelines.outcomes import delay_of
from rowlock.pipelines.settings import ATTEMPTS_MAX
from rowlock.spi import DURATION_MAX

ACTIVE_MAX = 1_000_000
LEASES_PER_TICK_MAX = 64
"""Most rows that one fetch leases."""
RETRY_JITTER_MAX = timedelta(seconds=30)
"""Most that is added by chance to `retry_interval`; never more than the interval itself."""
LOSSES_MAX = 1_000
PROVISIONS_MAX = 16
"""Most calls of the provisioner in flight."""
FLEET_MAX = 100_000

Rest: TypeAlias = timedelta | None
_Duration = Annotated[timedelta, Field(gt=timedelta(0), le=DURATION_MAX)]


class DispatchSettings(BaseModel):
    """The knobs of one dispatch pipeline; each is a keyword of its constructor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_active: Annotated[int, Field(ge=1, le=ACTIVE_MAX)] = 1024
    """The ceiling: at most this many rows are pending or running, give or take those that are
    submitted at the same moment.
    """
    attach_at_ceiling: bool = True
    """Whether a submission of a key that is active attaches to its row also at the ceiling."""
    retry_interval: _Duration = timedelta(seconds=120)
    """How long a row that found no worker rests, and how long a refused client is to wait."""
    dispatch_deadline: _Duration = timedelta(seconds=14_400)
    """A row that no worker has accepted so long after its submission fails, and no attempt at it is
    repeated later.
    """
    time_limit: _Duration = timedelta(seconds=14_400)
    """Longest time for one attempt that a worker has accepted."""
    heartbeat: _Duration = timedelta(seconds=10)
    """How often an engine lets hear that an attempt lives."""
    heartbeat_limit: _Duration = Field(default=None, validate_default=True)
    """An attempt of which nothing was heard for so long is lost. Default: three times
    `heartbeat`.
    """
    max_losses: Annotated[int, Field(ge=1, le=LOSSES_MAX)] = 3
    """A row fails when the worker or the replica died with so many of its attempts."""
    stale_after: _Duration | None = None
    """An active row that was not held for so long beyond its time gives way to a new
    submission. Default: 10 x `lock_timeout`.
    """
    fleet_cap: Annotated[int, Field(ge=0, le=FLEET_MAX)] = 0
    """With so many workers the provisioner is not asked for more; 0 is no cap."""

    @field_validator("heartbeat_limit", mode="wrap")
    @classmethod
    def derive(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        heartbeat = info.data.get("heartbeat")
        if value is not None:
            return handler(value)
        # None only where `heartbeat` is invalid, which has its own error.
        return None if heartbeat is None else 3 * heartbeat

    @property
    def jitter(self) -> timedelta:
        """Most that is added by chance to `retry_interval`."""
        return min(RETRY_JITTER_MAX, self.retry_interval)


class DispatchKeywords(SettingsKeywords, total=False):
    """The keywords of a dispatch pipeline's constructor; a number is seconds where a duration is
    meant.
    """

    retry_on: RetryOn
    max_active: int
    attach_at_ceiling: bool
    retry_interval: timedelta | float
    dispatch_deadline: timedelta | float
    time_limit: timedelta | float
    heartbeat: timedelta | float
    heartbeat_limit: timedelta | float | None
    max_losses: int
    stale_after: timedelta | float | None
    fleet_cap: int


DISPATCH_NAMES = frozenset(DispatchSettings.model_fields)


def retried_errors(pipeline: str, rules: Mapping[type, ErrorRule]) -> dict[str, Rest]:
    """How long a row rests after each error of `retry_on`, by class name; None: backoff."""
    rests: dict[str, Rest] = {}
    for error, rule in rules.items():
        if callable(rule.delay):
            raise SettingsError(
                f"{pipeline}.retry_on: the delay of {error.__name__} is a function, and the error"
                " of another process is not there to be asked; give a duration, or None for the"
                " backoff",
                pipeline=pipeline,
                settings=("retry_on",),
            )
        if rule.parks:
            raise SettingsError(
                f"{pipeline}.park_on: {error.__name__} parks no row of a dispatch pipeline: an"
                " error that is not in retry_on fails the row; leave park_on out",
                pipeline=pipeline,
                settings=("park_on",),
            )
        rests[class_name(error)] = None if rule.delay is None else delay_of(rule.delay)
    return rests


def build_dispatch_settings(pipeline: str, values: dict[str, Any]) -> DispatchSettings:
    try:
        return DispatchSettings(**values)
    except ValidationError as error:
        names = tuple(dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()))
        text = "; ".join(
            f"{problem['loc'][0]} = {problem['input']!r}: {problem['msg']}"
            for problem in error.errors()
        )
        raise SettingsError(f"{pipeline}: {text}", pipeline=pipeline, settings=names) from None


def check_beside(pipeline: str, own: DispatchSettings, base: PipelineSettings) -> None:
    for names, problem in _contradictions(own, base):
        raise SettingsError(f"{pipeline}: {problem}", pipeline=pipeline, settings=names)


def _contradictions(
    own: DispatchSettings, base: PipelineSettings
) -> Iterator[tuple[tuple[str, ...], str]]:
    if base.lock_timeout <= 2 * own.heartbeat:
        yield (
            ("lock_timeout", "heartbeat"),
            f"lock_timeout ({_text(base.lock_timeout)}) must be more than twice heartbeat"
            f" ({_text(own.heartbeat)}), or one beat that is late looks like a death",
        )
    if own.heartbeat_limit < 2 * own.heartbeat:
        yield (
            ("heartbeat_limit", "heartbeat"),
            f"heartbeat_limit ({_text(own.heartbeat_limit)}) must be at least twice heartbeat"
            f" ({_text(own.heartbeat)}): one that is late is no death",
        )
    limit = base.process_timeout or DURATION_MAX
    if limit <= own.time_limit:
        yield (
            ("process_timeout", "time_limit"),
            f"process_timeout ({_text(limit)}) must be more than time_limit"
            f" ({_text(own.time_limit)}); leave it out",
        )
    if (base.max_attempts or ATTEMPTS_MAX) < ATTEMPTS_MAX:
        yield (
            ("max_attempts",),
            f"max_attempts ({base.max_attempts}) would park rows that only wait for a worker, since"
            " offers in vain count; leave it out, and use max_losses and dispatch_deadline",
        )


def _text(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
