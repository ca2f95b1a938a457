"""What is spent while nothing happens: an empty table at full backoff, and items that are all
asleep.
"""

from __future__ import annotations

import asyncio
import statistics

from host import Asleep, Host, NoOp
from measure import Figures, Place, Scale, until
from meter import Meter
from sqlalchemy import text
from sqlalchemy.pool import QueuePool

from rowlock import PipelineManager

BACKED_OFF_S = 6
"""By then the rests have reached their last step."""
ASLEEP = 500
SAMPLE_S = 0.05

_OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'
"""


async def idle(place: Place, scale: Scale) -> Figures:
    """Return statements per second and the share of a core that one pipeline with nothing to do
    takes.
    """
    window_s = scale.pick(30, 10)
    async with Host.opened(place.url) as host:
        meter = await Meter.on(host.engine)
        async with PipelineManager(host.session_factory, [NoOp()]):
            await asyncio.sleep(BACKED_OFF_S)
            meter.start()
            await asyncio.sleep(window_s)
            meter.stop()
    return {
        "statements/s": meter.statements / meter.seconds,
        "transactions/s": meter.transactions / meter.seconds,
        "client CPU %": 100 * meter.client_s / meter.seconds,
    }


async def asleep(place: Place, scale: Scale) -> Figures:
    """Return connections and open transactions of one replica while 500 items sleep and are
    renewed.
    """
    window_s = scale.pick(20, 8)
    pipeline = Asleep(workers_num=ASLEEP, lock_timeout=6, heartbeat_trigger=3)
    async with Host.opened(place.url) as host:
        await host.add(ASLEEP)
        # The connections of setting up are none of the library's.
        await host.engine.dispose()
        meter = Meter(host.engine)
        async with (
            Host.opened(place.url, empty=False) as watching,
            PipelineManager(host.session_factory, [pipeline]),
        ):
            await until(lambda: pipeline.started >= ASLEEP)
            to_start = meter.connections
            meter.start()
            in_use, idle_in_transaction = await _sampled(host, watching, window_s)
            meter.stop()
            pipeline.may_end.set()
    return {
        "connections opened": float(to_start),
        "in use, mean": statistics.mean(in_use),
        "in use, most": float(max(in_use)),
        "idle in transaction, most": float(max(idle_in_transaction, default=0)),
        "statements/s": meter.statements / meter.seconds,
        "client CPU %": 100 * meter.client_s / meter.seconds,
    }


async def _sampled(host: Host, watching: Host, window_s: float) -> tuple[list[int], list[int]]:
    pool = host.engine.sync_engine.pool
    assert isinstance(pool, QueuePool)
    in_use, idle_in_transaction = [], []
    for number in range(int(window_s / SAMPLE_S)):
        in_use.append(pool.checkedout())
        # Asked rarely: it takes a few milliseconds of this very process.
        if host.is_postgresql and number % 10 == 0:
            async with watching.engine.connect() as connection:
                idle_in_transaction.append(
                    (await connection.execute(text(_OPEN_TRANSACTIONS))).scalar_one()
                )
        await asyncio.sleep(SAMPLE_S)
    return in_use, idle_in_transaction
