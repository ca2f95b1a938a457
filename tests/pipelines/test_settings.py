"""Settings: the documented defaults, the bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from rowlock import PipelineHinter, PipelineSettings, SettingsError, SettingsKeywords
from rowlock.pipelines.settings import SETTING_NAMES, SettingsAttributes, build_settings
from rowlock.testing import TemporaryDatabase

from ..host import RunPipeline, VolumePipeline


def test_defaults_are_the_documented_ones() -> None:
    """A host that sets nothing would get other times and sizes than it has read about."""
    settings = VolumePipeline().settings
    assert settings.workers_num == 10
    assert (settings.queue_lower_limit_factor, settings.queue_upper_limit_factor) == (0.5, 2.0)
    assert settings.min_processing_interval == timedelta(seconds=15)
    assert settings.lock_timeout == timedelta(seconds=30)
    assert settings.heartbeat_trigger == timedelta(seconds=15)
    assert settings.fetch_delays_s == (0.5, 1, 2, 5)
    assert settings.process_timeout == timedelta(hours=1)
    assert (settings.retry_delay, settings.retry_delay_max) == (
        timedelta(seconds=1),
        timedelta(minutes=5),
    )
    assert (settings.max_attempts, settings.max_deaths) == (None, 20)


@pytest.mark.parametrize(
    "settings",
    [{"max_attempts": 3}, {"max_deaths": 3}, {"retry_delay_max": 60}, {"retry_delay_max": 900}],
)
def test_a_setting_without_effect_is_refused(settings: Any) -> None:
    """A limit of attempts that no column counts is refused, and accepted with `ScheduleColumns`."""
    with pytest.raises(SettingsError, match="has no effect, since Volume has no Schedule") as told:
        VolumePipeline(**settings)
    assert told.value.settings == tuple(settings)
    assert RunPipeline(**settings)


def test_a_long_rest_after_a_reset_needs_no_schedule() -> None:
    """`retry_delay_max` bounds `retry_delay`, which counts for every model."""
    assert VolumePipeline(retry_delay=900, retry_delay_max=900, max_deaths=None)


def test_editors_complete_what_there_is() -> None:
    """A setting could be given that type checkers refuse, or is of another type than they say."""
    names = list(SETTING_NAMES)
    keywords, attributes = get_type_hints(SettingsKeywords), get_type_hints(SettingsAttributes)
    assert list(keywords) == list(attributes) == names
    assert keywords == attributes
    for name, type_ in keywords.items():
        default = PipelineSettings.model_fields[name].default
        if name == "process_timeout":
            assert type_ == timedelta | float | None, name
        elif isinstance(default, timedelta):
            assert type_ == timedelta | float, name
        elif name in ("max_attempts", "max_deaths"):
            assert type_ == int | None, name
        elif default is None:
            assert type_ == timedelta | float | None, name
        elif not isinstance(default, tuple):
            assert type_ is type(default), name


def test_derived_defaults_follow_what_they_are_derived_from() -> None:
    """A host that doubles its leases would keep the margins of short ones."""
    settings = PipelineSettings(lock_timeout=60, heartbeat_trigger=30)
    assert settings.lease_margin == timedelta(seconds=6)
    assert settings.heartbeat_interval == timedelta(seconds=2)
    assert settings.renew_timeout == timedelta(seconds=10)
    assert settings.orphaned_after == timedelta(seconds=600)
    assert settings.stall_limit == timedelta(seconds=600)


def test_derived_defaults_have_no_bounds_of_their_own() -> None:
    """The longest lease that is allowed would be refused for a default that nobody has chosen."""
    settings = PipelineSettings(lock_timeout=timedelta(days=366))
    assert settings.orphaned_after == timedelta(days=3660)


def test_what_a_default_is_derived_from_is_told_alone() -> None:
    """A host that mistypes one setting would be told of six that are wrong."""
    with pytest.raises(SettingsError) as caught:
        build_settings("P", {"lock_timeout": -1})
    assert caught.value.settings == ("lock_timeout",)


def test_a_number_is_seconds() -> None:
    """A host that writes 60 would get some other unit."""
    settings = VolumePipeline(lock_timeout=60, fetch_delays=[0.25, timedelta(minutes=1)]).settings
    assert settings.lock_timeout == timedelta(minutes=1)
    assert settings.fetch_delays_s == (0.25, 60)


class PatientVolumePipeline(VolumePipeline):
    workers_num = 3
    lock_timeout = 40


def test_keywords_win_over_class_attributes() -> None:
    """One instance, in a test or on a small machine, could not differ from its class."""
    pipeline = PatientVolumePipeline(workers_num=4)
    assert (pipeline.settings.workers_num, pipeline.settings.lock_timeout) == (
        4,
        timedelta(seconds=40),
    )
    assert pipeline.workers_num == 4
    assert PatientVolumePipeline().settings.workers_num == 3


def test_an_unknown_setting_is_told_with_those_that_exist() -> None:
    """A typing error would leave the default in force, silently."""
    with pytest.raises(SettingsError) as caught:
        VolumePipeline(worker_num=3)
    assert caught.value.settings == ("worker_num",)
    assert all(
        name in str(caught.value) for name in ("VolumePipeline", "worker_num", *SETTING_NAMES)
    )


@pytest.mark.parametrize(
    ("values", "names", "to_change"),
    [
        (
            {"queue_lower_limit_factor": 3.0},
            ("queue_lower_limit_factor", "queue_upper_limit_factor"),
            "lower the first or raise the second",
        ),
        (
            {"heartbeat_trigger": 30},
            ("heartbeat_trigger", "lock_timeout"),
            "half of lock_timeout is a good value",
        ),
        (
            {"heartbeat_trigger": 31},
            ("heartbeat_trigger", "lock_timeout"),
            "must be less than lock_timeout",
        ),
        (
            {"lease_margin": 8},
            ("heartbeat_trigger", "lease_margin", "heartbeat_interval", "renew_timeout"),
            "raise heartbeat_trigger or lower the others",
        ),
        (
            {"heartbeat_interval": 3},
            ("heartbeat_trigger", "lease_margin", "heartbeat_interval", "renew_timeout"),
            "raise heartbeat_trigger or lower the others",
        ),
        (
            {"renew_timeout": 9.7},
            ("heartbeat_trigger", "lease_margin", "heartbeat_interval", "renew_timeout"),
            "raise heartbeat_trigger or lower the others",
        ),
        ({"retry_delay": 301}, ("retry_delay", "retry_delay_max"), "is above retry_delay_max"),
        (
            {"stall_limit": 29},
            ("stall_limit", "lock_timeout"),
            "must not be less than lock_timeout",
        ),
        (
            {"orphaned_after": 30},
            ("orphaned_after", "lock_timeout"),
            "must be more than lock_timeout",
        ),
    ],
)
def test_contradictions(values: dict[str, Any], names: tuple[str, ...], to_change: str) -> None:
    """Leases would be lost, or nothing fetched, on a machine under load, long after the start."""
    with pytest.raises(SettingsError) as caught:
        VolumePipeline(**values)
    assert caught.value.settings == names
    assert caught.value.pipeline == "VolumePipeline"
    assert to_change in str(caught.value)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    "values",
    [
        {"queue_lower_limit_factor": 2.0},
        {"heartbeat_trigger": 29.9, "renew_timeout": 1, "heartbeat_interval": 1},
        {"renew_timeout": 9.6},
        {"retry_delay": 300},
        {"orphaned_after": 30.1},
        {"stall_limit": 30},
        {"min_processing_interval": 0},
        {"queue_lower_limit_factor": 0},
    ],
)
def test_the_edge_of_what_is_allowed(values: dict[str, Any]) -> None:
    """A rule would refuse what harms nobody."""
    VolumePipeline(**values)


BAD: dict[str, tuple[object, ...]] = {
    "workers_num": (0, 10001, "many"),
    "queue_lower_limit_factor": (-0.1, float("nan")),
    "queue_upper_limit_factor": (-0.1, 1001, float("nan")),
    "min_processing_interval": (-1,),
    "lock_timeout": (0, None, float("nan"), float("inf"), timedelta(days=367)),
    "heartbeat_trigger": (0,),
    "fetch_delays": ((), (1, 0), (1,) * 33, 5),
    "lease_margin": (0,),
    "heartbeat_interval": (0,),
    "renew_timeout": (-1,),
    "database_timeout": (0,),
    "process_timeout": (0,),
    "cancel_grace": (0,),
    "retry_delay": (0,),
    "retry_delay_max": (0,),
    "max_attempts": (0, 1000001),
    "orphaned_after": (0,),
    "stall_limit": (0,),
}
"""Beyond the bounds of each setting, or of another kind."""


@pytest.mark.parametrize(("name", "value"), [(name, bad) for name in BAD for bad in BAD[name]])
def test_bounds(name: str, value: object) -> None:
    """A value that no machine can keep would be found out by the machine."""
    with pytest.raises(SettingsError) as caught:
        VolumePipeline(**{name: value})
    assert caught.value.settings == (name,)
    assert name in str(caught.value)


def test_all_bad_values_are_told_at_once() -> None:
    """A host would mend one value only to hear of the next."""
    with pytest.raises(SettingsError) as caught:
        build_settings("VolumePipeline", {"workers_num": 0, "max_attempts": 0})
    assert caught.value.settings == ("workers_num", "max_attempts")


@pytest.mark.parametrize(
    ("workers", "lower", "upper", "watermarks"),
    [
        (10, 0.5, 2.0, (5, 20)),
        (1, 0.0, 0.1, (1, 1)),
        (3, 0.5, 0.5, (2, 2)),
        (1, 0.5, 2.0, (1, 2)),
        (8, 0.0, 0.0, (1, 8)),
    ],
)
def test_watermarks(workers: int, lower: float, upper: float, watermarks: tuple[int, int]) -> None:
    """A queue would have no place at all, or a low watermark that it can never be below."""
    settings = PipelineSettings(
        workers_num=workers, queue_lower_limit_factor=lower, queue_upper_limit_factor=upper
    )
    assert (settings.queue_low_watermark, settings.queue_capacity) == watermarks


@pytest.mark.parametrize(("factor", "holds_ahead"), [(0, False), (0.1, True), (2, True)])
async def test_a_queue_of_nothing_holds_nothing_ahead(
    sqlite_database: TemporaryDatabase, factor: float, holds_ahead: bool
) -> None:
    """A replica whose workers are all busy would lease rows that it cannot begin."""
    pipeline = VolumePipeline(queue_lower_limit_factor=0, queue_upper_limit_factor=factor)
    run = pipeline.build_run(sqlite_database.session_factory, PipelineHinter())
    assert run.context.queue.holds_ahead is holds_ahead


def test_class_attributes_are_the_defaults_of_the_settings() -> None:
    """A class attribute and the reference would name two defaults for one setting."""
    assert VolumePipeline().settings == PipelineSettings()
    assert VolumePipeline.workers_num == 10


def test_derived_defaults_can_be_set() -> None:
    """A host could not lower them although it knows its clocks and its network."""
    settings = PipelineSettings(
        lease_margin=1, heartbeat_interval=0.5, renew_timeout=2, orphaned_after=3600, stall_limit=60
    )
    derived = (
        settings.lease_margin,
        settings.heartbeat_interval,
        settings.renew_timeout,
        settings.orphaned_after,
        settings.stall_limit,
    )
    assert [time.total_seconds() for time in derived] == [1, 0.5, 2, 3600, 60]


def test_settings_cannot_be_changed_afterwards() -> None:
    """A change would pass by all the checks."""
    with pytest.raises(ValueError, match="frozen"):
        VolumePipeline().settings.workers_num = 0
