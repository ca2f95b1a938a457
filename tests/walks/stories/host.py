"""The host of the stories: the shop's volumes are provisioned, its fleets lock theirs. A replica is
``python host.py URL NAME PIPELINE...``, and the command line finds the app in ``host:manager``.

A replica tells when it is ready and what happens, one word and a key a line, until its input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    Event,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    RelatedLockUnavailable,
    Reset,
    events,
    subscribe,
)
from rowlock.insight import Observer, insight_tables
from tests.insight.shop import Base, Fleet, Volume

TABLES = insight_tables(Base.metadata)


class VolumePipeline(Pipeline[Volume]):
    model = Volume
    max_attempts = 3
    retry_delay = 0.01

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        """Ask the cloud; one refuses, and another one never answers."""
        tell("working", item.id)
        if item.row.cloud == "cloud-7":
            raise ConnectionError("cloud-7 refused")
        if item.row.cloud == "cloud-9":
            await asyncio.Event().wait()
        return Apply({"status": "active"})


class FleetPipeline(Pipeline[Fleet]):
    """Counts the volumes of growing fleets, all of them at once."""

    model = Fleet
    locks = (Volume,)
    retry_delay = 0.1

    def ready(self) -> ColumnElement[bool]:
        return Fleet.status == "growing"

    async def process(self, item: PipelineItem[Fleet]) -> Outcome:
        try:
            await item.lock_related(Volume, Volume.fleet_id == item.id)
        except RelatedLockUnavailable:
            return Reset()
        return Apply({"status": "grown"})


PIPELINES: dict[str, type[Pipeline[Any]]] = {
    one.__name__: one for one in (VolumePipeline, FleetPipeline)
}


def tell(what: str, key: object = "") -> None:
    print(what, key, flush=True)


def tell_event(event: Event) -> None:
    match event:
        case events.ItemParked(row_id=key):
            tell("parked", key)
        case events.ItemApplied(row_id=key, outcome="Reset"):
            tell("reset", key)
        case events.ItemApplied(row_id=key, outcome="Apply"):
            tell("applied", key)
        case events.FetchEnded():
            tell("fetched")
        case _:
            pass


def manager_of(url: str, *names: str, **settings: Any) -> PipelineManager:
    sessions = async_sessionmaker(create_async_engine(url))
    pipelines = [PIPELINES[name](**settings) for name in names]
    return PipelineManager(sessions, pipelines, gates=[TABLES.pause_gate])


def manager() -> PipelineManager:
    return manager_of(os.environ["SHOP_DATABASE"], *PIPELINES)


async def main(url: str, name: str, *pipelines: str) -> None:
    """Run one replica until its input ends; one whose name ends in ``!`` fetches once."""
    settings = {"fetch_delays": (600,), "retry_delay": 60} if name.endswith("!") else {}
    running = manager_of(url, *pipelines, **settings)
    subscribe(tell_event)
    async with running, Observer(running, tables=TABLES, name=name.rstrip("!")) as observer:
        await observer.beat()
        tell("ready")
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
