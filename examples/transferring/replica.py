"""One replica of the bank, until the example ends it: it works on the ledger and sends letters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from httpx import AsyncClient
from loopback.child import next_line
from loopback.database import opened

from rowlock import PipelineManager
from rowlock.dispatch import AttemptEvent, Completed, DispatchPipeline, LoopEngine, Task

from .streams import streams
from .tables import Alarm


async def main(url: str, owners: str) -> None:
    """Work on all pipelines, those of the flow and that of the letters."""
    async with AsyncClient(base_url=owners, trust_env=False) as http, opened(url) as sessions:

        async def mail(task: Task[Alarm]) -> AsyncIterator[AttemptEvent]:
            # A letter that is sent again has the same name there.
            letter = f"/{task.row.dedup_key}"
            (await http.put(letter, content=task.row.account)).raise_for_status()
            yield Completed({})

        mails = DispatchPipeline(Alarm, handler=mail, engine=LoopEngine(4))
        async with PipelineManager(sessions, [*streams.pipelines(), mails]):
            print("ready", flush=True)
            await next_line()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
