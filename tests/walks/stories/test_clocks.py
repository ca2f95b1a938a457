"""Only the database's clock counts."""

from __future__ import annotations

import re
import socket
import sys

import pytest

from rowlock.testing import TemporaryDatabase

from .host import Volume
from .scene import HERE, normalised, shop

HOUR_S = 3600
HOST = socket.gethostname()
COMMANDS = (
    *("explain", "Volume", "18", ","),
    *("explain", "Volume", "19", ","),
    *("replicas", ","),
    "status",
)


def same_words(printed: str) -> str:
    seconds = re.sub(r"\b\d+ s\b(?: ago)?|\bnow\b", "21 s", normalised(printed))
    return " ".join(seconds.split())


@pytest.mark.at_length
async def test_clocks_that_are_an_hour_off_change_no_text(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A row would be due in an hour, or a replica dead, on whichever machine a person sits."""
    async with shop(sqlite_database) as scene:
        await scene.add(Volume(id=17, cloud="cloud-9"), Volume(id=18), Volume(id=19))
        await scene.write(18, parked_at=-10_900, last_processed_at=-10_900)
        await scene.write(19, due_at=14_000)
        replica = await scene.start("web-7", "VolumePipeline", skew_s=HOUR_S)
        await scene.hears(replica, "working 17")
        skews = f"0,{HOUR_S},{-HOUR_S}"
        program = (sys.executable, str(HERE / "skewed.py"), skews, "rowlock", *COMMANDS)
        told = await scene.printed_by(*program)
    first, ahead, behind, _ = map(same_words, told.split("-" * 20 + "\n"))
    assert "RESTING for 3 h more" in first
    assert "PARKED for 3 h" in first
    assert f"{HOST} 21 s 21 s 1 live" in first
    assert "1 replica: web-7" in first
    assert ahead == first
    assert behind == first
