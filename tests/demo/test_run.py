"""Replicas as processes: none is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rowlock.demo.run import replicas_on, tables_in


async def test_replicas_end_on_every_path(tmp_path: Path) -> None:
    """A demo that fails, or that is itself killed, would leave processes behind."""
    async with tables_in(tmp_path):
        context = replicas_on(tmp_path, scratch=tmp_path, count=2)
        first, second = await context.__aenter__()
        await first.end()  # closes its standard input, as the end of the parent does
        assert first.process.returncode == 0
        assert second.is_alive
        assert not await context.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert not second.is_alive


async def test_replica_that_cannot_start_shows_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason would lie in a file that has been removed already."""
    monkeypatch.setattr(sys, "executable", "/bin/ls")
    with pytest.raises(ChildProcessError, match=r"did not start(?s:.*)rowlock.demo.host"):
        async with replicas_on(tmp_path, scratch=tmp_path, count=1):
            pass
