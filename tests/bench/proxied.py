"""A process with one proxy before a server: ``python proxied.py URL SECONDS`` prints the port,
and answers so much later.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sqlalchemy import make_url

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos.proxy import Proxy


async def main(url: str, latency_s: float) -> None:
    proxy = Proxy(make_url(url), latency_s=latency_s)
    await proxy.start()
    print(proxy.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
