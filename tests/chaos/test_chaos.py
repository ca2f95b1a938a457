"""A minute of chaos: nothing lost, nothing applied twice, all settled, nothing left behind."""

from __future__ import annotations

import pytest

from .run import run
from .server import own_server

SECONDS = 60.0
SEED = 1
FAULTS = {
    "clean shutdown",
    "connections cut",
    "connections stall",
    "connections terminated",
    "freeze past the lease",
    "kill -9",
    "server crashes",
    "server restarts",
    "the answer of a COMMIT lost",
}


@pytest.mark.timeout(600)
async def test_a_minute_of_chaos() -> None:
    """What holds against each fault by itself would not hold against all of them together."""
    with own_server() as server:
        ran = await run(SEED, seconds=SECONDS, server=server)
    assert not ran.verdict.wrongs, str(ran)
    assert ran.faults.keys() >= FAULTS
    assert ran.verdict.figures["leases that ended under a holder"] > 0
    print(ran)
