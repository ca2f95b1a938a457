"""A minute of chaos: nothing lost, nothing applied twice, all settled, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rowlock.testing import PostgresqlServer

from .run import run

SECONDS = 60.0
SEED = 1
FAULTS = {
    "clean shutdown",
    "connections cut",
    "connections stall",
    "connections terminated",
    "kill -9",
    "server crashes",
    "server restarts",
    "the answer of a COMMIT lost",
}


@pytest.mark.timeout(400)
async def test_a_minute_of_chaos(postgresql_server: Callable[..., PostgresqlServer]) -> None:
    """What holds against each fault by itself would not hold against all of them together."""
    ran = await run(SEED, seconds=SECONDS, server=postgresql_server(durable=True))
    assert not ran.verdict.wrongs, str(ran)
    assert ran.faults.keys() >= FAULTS
    assert ran.verdict.figures["leases that ended under a holder"] > 0
    print(ran)
