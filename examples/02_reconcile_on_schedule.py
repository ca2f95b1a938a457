"""Certificates are renewed in time: a schedule, retries with backoff, and a row that is parked
until somebody mends it.

The one idea: `process` reconciles. It reads what is, compares it with what should be, does what is
missing and says when to look again. With `ScheduleColumns` each row has a time of its own, and a
service may move it.

Run it: ``python examples/02_reconcile_on_schedule.py``. It ends by itself and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Park,
    Pipeline,
    PipelineItem,
    PipelineManager,
    Retry,
    ScheduleColumns,
    hint_after_commit,
    make_due,
    unpark,
)

VALID_FOR = timedelta(days=60)
POLL_S = 0.02
WAIT_S_MAX = 20.0


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Certificate(LockColumns, ScheduleColumns, Base):
    """A certificate to be kept valid; `ScheduleColumns` says when to look at it again."""

    __tablename__ = "certificates"

    domain: Mapped[str] = mapped_column(primary_key=True)
    serial: Mapped[int] = mapped_column(default=0)


class AuthorityBusyError(Exception):
    """The authority cannot answer now; later it can."""


class Authority:
    """Stands in for a certificate authority that is busy at first and knows only registered
    domains.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.registered = {"example.org", "example.net"}

    async def issue(self, domain: str, *, serial: int) -> int:
        """Return the new serial number; asking twice for the same one gives the same
        certificate.
        """
        self.calls[domain] += 1
        await asyncio.sleep(0.01)
        if domain == "example.org" and self.calls[domain] <= 2:
            raise AuthorityBusyError("try later")
        if domain not in self.registered:
            raise LookupError(f"{domain} is not registered")
        return serial


class CertificatePipeline(Pipeline[Certificate]):
    """Renews each certificate when it is due."""

    model = Certificate
    workers_num = 2
    retry_delay = 0.05  # short, so that this example is; the default is a second
    max_attempts = 5

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.authority = authority

    def ready(self) -> ColumnElement[bool]:
        """Every certificate wants work whenever it is due."""
        return true()

    async def process(self, item: PipelineItem[Certificate]) -> Outcome:
        """Renew; a passing failure is retried, one that only a person can mend is parked."""
        domain, serial = item.row.domain, item.row.serial + 1
        try:
            issued = await self.authority.issue(domain, serial=serial)
        except AuthorityBusyError as error:
            print(f"{domain}: attempt {item.attempt} failed, {error}")
            return Retry(error=error)
        except LookupError as error:
            print(f"{domain}: parked")
            return Park(str(error))
        print(f"{domain}: renewed in attempt {item.attempt}")
        return Apply({"serial": issued}, after=VALID_FOR / 2)


Sessions = async_sessionmaker[AsyncSession]


async def wait_for(
    sessions: Sessions, domain: str, condition: Callable[[Certificate], bool]
) -> Certificate:
    """Return the certificate once it meets the condition."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            async with sessions() as session:
                certificate = await session.get_one(Certificate, domain)
            if condition(certificate):
                return certificate
            await asyncio.sleep(POLL_S)


async def renew_now(sessions: Sessions, domain: str) -> None:
    """Let a service ask for a renewal: the schedule is moved in its own transaction, the hint
    goes out with the commit.
    """
    async with sessions.begin() as session:
        await make_due(session, await session.get_one(Certificate, domain))
        hint_after_commit(session, Certificate)


async def release_parked(sessions: Sessions) -> list[str]:
    """Let an operator put every parked certificate back into play, and return their domains."""
    async with sessions.begin() as session:
        parked = list(
            await session.scalars(select(Certificate).where(Certificate.parked_at.is_not(None)))
        )
        for certificate in parked:
            await unpark(session, certificate)
        hint_after_commit(session, Certificate)
        return [certificate.domain for certificate in parked]


async def main(folder: Path) -> None:
    """Run a host through failures, a repair and a request."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    authority = Authority()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async with PipelineManager(sessions, [CertificatePipeline(authority)]):
        async with sessions.begin() as session:
            session.add_all([Certificate(domain="example.org"), Certificate(domain="example.test")])
            hint_after_commit(session, Certificate)

        renewed = await wait_for(
            sessions, "example.org", lambda certificate: certificate.serial == 1
        )
        assert renewed.last_processed_at is not None
        print(f"example.org: due again in {(renewed.due_at - renewed.last_processed_at).days} days")
        parked = await wait_for(
            sessions, "example.test", lambda certificate: certificate.parked_at is not None
        )
        print(f"example.test: {parked.last_error}")

        authority.registered.add("example.test")
        print(f"released: {', '.join(await release_parked(sessions))}")
        await wait_for(sessions, "example.test", lambda certificate: certificate.serial == 1)

        await renew_now(sessions, "example.org")
        await wait_for(sessions, "example.org", lambda certificate: certificate.serial == 2)
        print("example.org: renewed at once, since a service asked")
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
