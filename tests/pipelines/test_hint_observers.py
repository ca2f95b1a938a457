"""Observers of hints: they hear each one, and change nothing."""

from __future__ import annotations

from asyncio import CancelledError

import pytest

from rowlock import PipelineHinter


def test_an_observer_hears_every_hint() -> None:
    """A span would not be linked to the request that hinted."""
    hinter, heard, woken = PipelineHinter(), list[str](), list[str]()
    hinter.attach("Volume", lambda: woken.append("Volume"))
    hinter.attach_observer(heard.append)
    hinter.hint_fetch("Volume")
    hinter.hint_fetch("stream:usage")
    assert (heard, woken) == (["Volume", "stream:usage"], ["Volume"])
    hinter.detach_observer(heard.append)
    hinter.detach_observer(heard.append)
    hinter.hint_fetch("Volume")
    assert heard == ["Volume", "stream:usage"]


def test_an_observer_is_no_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    """A hint that nothing follows would no longer be warned of once somebody looks on."""
    hinter = PipelineHinter()
    hinter.attach_observer(lambda _name: None)
    hinter.hint_fetch("Volume")
    assert "A hint reached no pipeline: Volume" in caplog.text
    assert not hinter.reaches("Volume")


@pytest.mark.parametrize("error", [ZeroDivisionError, CancelledError])
def test_an_observer_that_fails_harms_no_hint(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The hint behind a commit would be lost, or the commit look as if it had failed."""
    hinter, woken = PipelineHinter(), list[str]()

    def fail(_name: str) -> None:
        raise error

    hinter.attach_observer(fail)
    hinter.attach("Volume", lambda: woken.append("Volume"))
    hinter.hint_fetch("Volume")
    assert woken == ["Volume"]
    assert "A callback for hints of Volume failed" in caplog.text
