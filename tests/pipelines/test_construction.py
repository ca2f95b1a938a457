"""What is refused while a pipeline is built, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import pytest
from sqlalchemy import true

from rowlock import Apply, ConfigurationError, Cron, ModelError, Outcome, Periodic, SettingsError
from rowlock.pipelines.pipeline import may_return_none

from ..host import Run, RunPipeline, Volume, VolumePipeline

if TYPE_CHECKING:
    MaybeOutcome = Outcome | None


def of(base: type = RunPipeline, **names: Any) -> Any:
    return type("Made", (base,), names)()


class Borrowed:
    models: dict[str, str]
    on_stales = print


class Described(RunPipeline):
    """Says of its attributes what they are, and sets none."""

    scheduler: object
    intents: list[str]


@pytest.mark.parametrize(
    "make",
    [
        lambda: of(models={}),
        lambda: of(scheduler=object()),
        lambda: of(on_retry=print),
        lambda: of(option=print),
        lambda: of(intents="text"),
        type("Made", (Borrowed, RunPipeline), {}),
        Described,
    ],
)
def test_names_of_the_hosts_own_are_let_alone(make: Callable[[], object]) -> None:
    """A host whose names are a little like ours could not use them, nor a mixin of others."""
    make()


class Other(VolumePipeline):
    def ready(self) -> Any:
        return VolumePipeline().ready() & (Volume.size_gb > 0)


def test_ready_may_build_another_pipeline() -> None:
    """The host would hang for ever while it starts."""
    assert "size_gb" in str(Other().ready())


@pytest.mark.parametrize(
    "ready",
    [
        lambda self: Volume.disk_id and Volume.status == "submitted",
        lambda self: (Volume.status == "submitted") & (not Volume.disk_id),  # type: ignore[operator]
        lambda self: true() if Volume.disk_id else Volume.status == "submitted",
    ],
)
def test_a_column_is_not_asked_for_its_truth(ready: Any) -> None:
    """Half of a condition would be lost, and rows be worked on that want none."""
    with pytest.raises(ModelError, match="asks Python whether"):
        of(VolumePipeline, ready=ready)


@pytest.mark.parametrize(
    ("late", "text"),
    [
        ({"settings": {"debug": True}}, "sets self.settings, where rowlock keeps its own"),
        ({"leased": None}, "sets self.leased"),
        ({"max_attempts": 1}, "sets self.max_attempts after super"),
        ({"intent": ["status"]}, "sets self.intent after super"),
        ({"max_attempt": 1}, "max_attempts is meant"),
    ],
)
def test_what_comes_behind_super_is_refused(late: dict[str, object], text: str) -> None:
    """The host's setting would be ignored without a word, or the start fail in our own code."""

    class Late(RunPipeline):
        def __init__(self) -> None:
            super().__init__()
            vars(self).update(late)

    class Inherits(Late):
        """Has no `__init__` of its own."""

    for kind in (Late, Inherits):
        with pytest.raises(ConfigurationError) as caught:
            kind()
        assert text in caught.value.message


def test_what_comes_before_super_is_read() -> None:
    """A host that computes a setting could not give it."""

    class Early(RunPipeline):
        def __init__(self) -> None:
            self.max_attempts = 7
            super().__init__()

    assert Early().settings.max_attempts == 7


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: of(process=3), "process must be a function"),
        (lambda: of(ready=lambda self: Run.statuss == 1), "has no attribute 'statuss'"),
        (lambda: of(schedule_of=returns_later), "must be a def"),
        (lambda: of(periodic=[Periodic(None, Cron("0 3 * * *"))]), "by their keys"),
        (lambda: of(periodic=[Periodic([1], Cron("0 3 * * *"))]), "by their keys"),
        (lambda: Cron("1," * 1000 + "1 * * * *"), "characters at most"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], object], text: str) -> None:
    """It would be found by each attempt, by each start, or never."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in caught.value.message


async def returns_later(self: Any, row: Any) -> Cron:
    return Cron("0 3 * * *")


def test_a_keyword_that_is_like_no_setting_is_taken_for_none() -> None:
    """A reader would be sent to a setting that has nothing to do with what was meant."""
    with pytest.raises(SettingsError) as caught:
        RunPipeline(max_retries=3)
    assert "may be meant" not in caught.value.message


def maybe() -> MaybeOutcome:
    return None


def optional() -> Outcome | None:
    return None


def anything() -> Any:
    return None


async def later() -> Outcome:
    return Apply()


def wrapped() -> Coroutine[Any, None, Apply]:
    return later()  # type: ignore[return-value]


def noted() -> Annotated[Outcome, "never None"]:
    return Apply()


def silent():  # type: ignore[no-untyped-def] # noqa: ANN201
    """Say nothing."""


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (optional, True),
        (anything, True),
        (maybe, False),
        (later, False),
        (wrapped, False),
        (noted, False),
        (silent, False),
        (partial(optional), False),
    ],
)
def test_annotations_are_read_as_they_are_meant(function: Any, may: bool) -> None:
    """A forgotten return would count as done, or a pipeline that only looks would fail."""
    assert may_return_none(function) is may


def test_a_mock_of_process_can_be_run() -> None:
    """Tests of hosts replace it."""
    with patch.object(RunPipeline, "process", return_value=Apply()):
        assert RunPipeline().build_run is not None
        assert not may_return_none(RunPipeline.process)
