"""Seconds of chaos: nothing lost, nothing applied twice, all settled, nothing left behind."""

from __future__ import annotations

import pytest

from ..lengths import at_length
from .run import run
from .server import own_server

SECONDS = at_length(15.0, 60.0)
SEED = 1


async def test_all_faults_together(pytestconfig: pytest.Config) -> None:
    """What holds against each fault by itself would not hold against all of them together."""
    with own_server() as server:
        driver = str(pytestconfig.getoption("--rowlock-driver"))
        ran = await run(SEED, seconds=SECONDS, server=server, driver=driver)
    assert not ran.verdict.wrongs, str(ran)
    assert not ran.missed, str(ran)
    assert ran.verdict.figures["leases that ended under a holder"] > 0
    print(ran)
