"""What the gate of pauses costs a claim, and what a claim costs that is paused.

Claims take turns, with the gate and without, so that both meet the same machine; the rows of each
are released again. The claims that find nothing are of the same table, without due rows.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Any

from host import Host, ScheduledJob, ScheduledNoOp
from measure import Figures, Place, Scale
from sqlalchemy import delete, insert, text, update

from rowlock import database_now
from rowlock.database.transaction import in_transaction
from rowlock.insight import insight_tables
from rowlock.leases.claim import claim
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.release import release
from rowlock.rows.eligibility import eligible_parts, oldest_first
from rowlock.rows.expressions import with_names_of_its_own

DUE = 2_000
PER_CLAIM = 10
OWNER = "ScheduledNoOp"
TIMEOUT = timedelta(seconds=10)
TABLES = insight_tables(ScheduledJob.metadata, replicas=False)
LEASED = ScheduledNoOp().leased


def request_of(*, is_gated: bool) -> ClaimRequest:
    """Return the claim of a pipeline, with the gate or without."""
    gates = [with_names_of_its_own(TABLES.pause_gate(LEASED, OWNER))] if is_gated else []
    return ClaimRequest(
        LEASED,
        eligible=eligible_parts(
            LEASED,
            ready=ScheduledNoOp().ready(),
            owner=OWNER,
            min_processing_interval=timedelta(seconds=15),
            gates=gates,
        ).whole,
        oldest_first=oldest_first(LEASED),
        owner=OWNER,
        lock_timeout=timedelta(seconds=60),
        limit=PER_CLAIM,
        gates=tuple(gates),
    )


async def gated(place: Place, scale: Scale) -> Figures:
    """Return what claims cost with the gate, without it, while paused, and where nothing is due."""
    claims = scale.pick(400, 40)
    async with Host.opened(place.url) as host:
        await host.add(DUE, ScheduledJob)
        plain, asking = request_of(is_gated=False), request_of(is_gated=True)
        with_gate, without = await _in_turns(host, (asking, plain), claims, scale.limit_first)
        await _pause(host)
        paused = [await _timed(host, asking) for _ in range(claims)]
        async with host.engine.begin() as connection:
            await connection.execute(delete(TABLES.controls))
            await connection.execute(update(ScheduledJob).values(status="settled"))
        async with host.engine.connect() as connection:
            if host.is_postgresql:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await connection.execute(text("VACUUM ANALYZE scheduled_jobs"))
        empty, ungated = await _in_turns(host, (asking, plain), claims, scale.limit_first)
    ms = {
        "with gate ms": statistics.median(with_gate),
        "without ms": statistics.median(without),
        "paused ms": statistics.median(paused),
        "empty ms": statistics.median(empty),
        "empty without gate ms": statistics.median(ungated),
    }
    return ms | {
        "gate / without": ms["with gate ms"] / ms["without ms"],
        "paused / empty": ms["paused ms"] / ms["empty ms"],
    }


async def _in_turns(
    host: Host, requests: tuple[ClaimRequest, ClaimRequest], claims: int, is_turned: bool
) -> list[list[float]]:
    times: list[list[float]] = [[], []]
    order = (1, 0) if is_turned else (0, 1)
    for _ in range(claims):
        for which in order:
            times[which].append(await _timed(host, requests[which]))
    return times


async def _timed(host: Host, request: ClaimRequest) -> float:
    began = time.perf_counter()
    items = await claim(
        host.session_factory, request, lease_margin=timedelta(seconds=3), timeout=TIMEOUT
    )
    took_ms = (time.perf_counter() - began) * 1000

    async def give_back(session: Any, connection: Any) -> None:
        await release(connection, LEASED, items)

    if items:
        await in_transaction(
            host.session_factory, LEASED, give_back, purpose="release rows", timeout=TIMEOUT
        )
    return took_ms


async def _pause(host: Host) -> None:
    values = {
        "pipeline": OWNER,
        "paused_at": database_now(),
        "paused_by": "bench",
        "reason": "measured",
    }
    async with host.engine.begin() as connection:
        await connection.execute(insert(TABLES.controls).values(values))
