"""The plain install answers every question and does every action; an extra that is missing is one
line with the command that installs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from rowlock.__main__ import COMMANDS
from rowlock.insight import insight_tables
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Base, Scene, furnish
from ..tidy.test_law_4_guests import WINDOWS
from .forked import RUN_S_MAX, SHOP
from .plain_install import QUESTIONS

GUESTS: Final = frozenset({*WINDOWS, "jinja2", "sse_starlette", "mcp"})
NEEDS_EXTRA: Final = frozenset({"top", "dashboard", "mcp", "completion"})


@pytest.mark.usefixtures("rowlock")
async def test_the_plain_install_has_every_command(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A person would have to install packages into a container at night."""
    insight_tables(Base.metadata, replicas=False)
    await furnish(sqlite_database, Scene({"status": "active"}))
    path = os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])
    program = Path(__file__).with_name("plain_install.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), ",".join(GUESTS), str(tmp_path)),
        env=os.environ | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(RUN_S_MAX):
        printed, _ = await process.communicate()
    *answers, (_, _, imported) = map(json.loads, printed.decode().splitlines())
    assert [words[0] for words, _, _ in answers] == [*COMMANDS, *(one[0] for one in QUESTIONS)]
    assert [one for one in answers if wrong(*one)] == []
    assert not GUESTS & set(imported.split(","))


def wrong(words: list[str], code: int, printed: str) -> Any:
    """Return whether a command did not do its part."""
    if "--help" in words:
        return code or not printed.startswith("usage: ")
    if words[0] in NEEDS_EXTRA:
        return (code, printed.count("\n")) != (2, 1)
    return code not in {0, 1} or "Traceback" in printed
