"""Twenty clients pay over HTTP and read the balance that their payment has led to, while one of two
servers is killed. Every balance that is read is right, and so are all at the end.

The one idea: a request adds a row and nothing else, so requests for one account do not wait for
each other's locks; the balance is a fold of these rows. `wait_for` answers once the fold has
passed the row, so that a client reads its own write, from whichever server.

Run it: ``python examples/13_balances.py`` (needs ``pip install fastapi httpx uvicorn``, and for
PostgreSQL ``pip install "rowlock[testing]"``; not on Windows). The service is ``examples/paying/``,
started here as two processes. It runs on SQLite, then on PostgreSQL, ends by itself and leaves
nothing behind, and fails if a balance is not the sum of its payments.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from httpx import AsyncClient, Response, TransportError
from loopback.database import Sessions, opened
from loopback.holders import shards_held
from loopback.server import Server, served
from paying.streams import SHARDS, balances
from paying.tables import Balance, Base, Payment
from sqlalchemy import func, select

from rowlock.testing import PostgresqlServer

CLIENTS = 20
PAYMENTS = 3
"""So many of each client."""
KILLED_AFTER = CLIENTS * PAYMENTS // 4
"""One server is killed when so many payments are answered."""
POLL_S = 0.05
WAIT_S_MAX = 120.0
"""After so long the example gives up."""


def amount(client: int, number: int) -> int:
    """Return what a client pays; some of it is paid out."""
    return (client * 37 + number * 101) % 900 - 300


@dataclass
class Counts:
    """What the clients have seen.

    Attributes:
        paid: payments that were answered with a balance.
        broken: requests that a dead server did not answer.
        deferred: answers that told to ask again.
        wrong: balances that were not the sum of what the client had paid by then.
    """

    paid: int = 0
    broken: int = 0
    deferred: int = 0
    wrong: int = 0


@dataclass
class Service:
    """Two servers, as the clients see them: a request that one does not answer goes to the other.

    Attributes:
        urls: where they answer.
        counts: what the clients have seen.
    """

    http: AsyncClient
    urls: Sequence[str]
    counts: Counts

    async def pay(self, first: int, payment: dict[str, Any]) -> int:
        """Send a payment until there is an answer with a balance; return the balance."""
        at = first
        while True:
            try:
                answer = await self.http.post(f"{self._url(at)}/payments", json=payment)
            except TransportError:
                self.counts.broken += 1
                at += 1
                continue
            if answer.status_code != 503:
                return _cents(answer)
            self.counts.deferred += 1

    async def read(self, first: int, account: str) -> int:
        """Return what is in an account."""
        try:
            return _cents(await self.http.get(f"{self._url(first)}/accounts/{account}"))
        except TransportError:
            return await self.read(first + 1, account)

    def _url(self, at: int) -> str:
        return self.urls[at % len(self.urls)]


def _cents(answer: Response) -> int:
    cents: int = answer.raise_for_status().json()["cents"]
    return cents


async def one_client(service: Service, client: int) -> None:
    """Pay into an account of one's own, and read after each payment what is there: in the answer,
    and from the other server.
    """
    account, expected = f"account-{client}", 0
    for number in range(PAYMENTS):
        cents = amount(client, number)
        payment = {"number": f"{account}/{number}", "account": account, "cents": cents}
        expected += cents
        answered = await service.pay(client, payment)
        read = await service.read(client + 1, account)
        service.counts.wrong += (answered != expected) + (read != expected)
        service.counts.paid += 1


# A server dies ------------------------------------------------------------------------------------


async def kill_one(servers: Sequence[Server], sessions: Sessions, counts: Counts) -> None:
    """Kill a server while the clients pay, and wait until the other one has its shards."""
    killed, other = servers
    while counts.paid < KILLED_AFTER:  # noqa: ASYNC110  # clients of one's own, that count
        await asyncio.sleep(POLL_S)
    (had,) = await shards_held(balances, sessions, [killed])
    await killed.kill()
    print(f"killed: a server with {had} shards", flush=True)
    while await shards_held(balances, sessions, [other]) != [SHARDS]:  # noqa: ASYNC110  # leases end
        await asyncio.sleep(POLL_S)
    print(f"when its leases had ended: the other server has all {SHARDS}", flush=True)


# The recount --------------------------------------------------------------------------------------


async def differences(sessions: Sessions) -> int:
    """Return how many accounts differ, by plain SQL that knows nothing of flows."""
    paid = select(Payment.account, func.sum(Payment.cents)).group_by(Payment.account)
    kept = select(Balance.account, Balance.cents)
    async with sessions() as session:
        missing = (await session.execute(paid.except_(kept))).all()
        surplus = (await session.execute(kept.except_(paid))).all()
    return len(missing) + len(surplus)


async def recount(sessions: Sessions, counts: Counts) -> bool:
    """Compare payments, balances and what the clients have seen; return whether all agree."""
    async with sessions() as session:
        rows = await session.scalar(select(func.count()).select_from(Payment))
        cents = await session.scalar(select(func.sum(Balance.cents)))
    expected = sum(amount(client, n) for client in range(CLIENTS) for n in range(PAYMENTS))
    differ = await differences(sessions)
    print(f"requests without an answer: {counts.broken}; told to ask again: {counts.deferred}")
    print(f"{rows} payments of {CLIENTS} clients; wrong balances were read: {counts.wrong}")
    print(f"SELECT account, sum(cents) ... EXCEPT: {differ} rows; {cents} cents in all", flush=True)
    return (rows, cents) == (CLIENTS * PAYMENTS, expected) and not differ + counts.wrong


async def run(url: str) -> bool:
    """Serve, pay, kill and recount on one database."""
    counts = Counts()
    async with asyncio.timeout(WAIT_S_MAX), opened(url) as sessions, AsyncExitStack() as stack:
        async with sessions.begin() as session:
            connection = await session.connection()
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        start = partial(served, "paying.service:create_app", {"PAYING_DATABASE": url})
        servers = await asyncio.gather(*(stack.enter_async_context(start()) for _ in range(2)))
        while not all(await shards_held(balances, sessions, servers)):  # noqa: ASYNC110  # they share
            await asyncio.sleep(POLL_S)
        http = await stack.enter_async_context(AsyncClient(trust_env=False, timeout=WAIT_S_MAX))
        service = Service(http, [server.url for server in servers], counts)
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_one(servers, sessions, counts))
            for client in range(CLIENTS):
                group.create_task(one_client(service, client))
        return await recount(sessions, counts)


async def main(folder: Path) -> bool:
    """Run on each database."""
    print("SQLite", flush=True)
    is_right = await run(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    server = PostgresqlServer(folder)
    try:
        print("PostgreSQL", flush=True)
        return await run(server.start().render_as_string(hide_password=False)) and is_right
    finally:
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(0 if asyncio.run(main(Path(temporary))) else 1)
