"""An archive is backed up member by member, through a graph inside one item; half-way the lease is
lost, and the next holder finishes.

The one idea: `run_graph` belongs to the item it runs in. When the lease is lost, `process` is
cancelled, and so is the run: no further call starts, and it returns only when none of its calls
runs any more. So nothing works on a row that another replica holds, and nothing is written. What
was uploaded meanwhile is found by its digest and not sent again.

Run it: ``python examples/11_archive_in_one_item.py`` (needs ``pip install httpx``). Both replicas
run in this process; the network of the first one fails half-way. The bucket is a server on
loopback. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from httpx import AsyncClient
from loopback.bucket import Bucket, serving_bucket
from sqlalchemy import JSON, ColumnElement, event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, PipelineManager
from rowlock.graph import Graph, run_graph

LIBRARY = Path(json.__file__).parents[1]
PACKAGES = ("asyncio", "email", "html", "json", "logging", "unittest")
"""What is in the archive: these packages of the standard library."""
POLL_S = 0.02
WAIT_S_MAX = 60.0
"""After so long the example gives up."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Archive(LockColumns, Base):
    """An archive that somebody has uploaded."""

    __tablename__ = "archives"

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]
    status: Mapped[str] = mapped_column(default="uploaded")
    digests: Mapped[dict[str, str] | None] = mapped_column(JSON)


class Member(NamedTuple):
    """A file of an archive on its way."""

    name: str
    body: bytes
    digest: str = ""


# What the operators do ----------------------------------------------------------------------------


def members_of(path: str) -> Iterator[Member]:
    """Yield the members one by one; the graph closes this generator, however the run ends."""
    with ZipFile(path) as archive:
        for name in archive.namelist():
            yield Member(name, archive.read(name))


def hashed(member: Member) -> Member:
    """Add the digest; hashlib releases the GIL."""
    return member._replace(digest=sha256(member.body).hexdigest())


def compressed(member: Member) -> Member:
    """Compress the body; zlib releases the GIL, too."""
    return member._replace(body=zlib.compress(member.body))


class Network:
    """One replica's way to the database and to the bucket; `cut` makes both unreachable."""

    def __init__(self) -> None:
        self._works = asyncio.Event()
        self._works.set()

    def cut(self) -> None:
        """Let nothing through."""
        self._works.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._works.set()

    async def wait(self) -> None:
        """Wait until the network works, as a request without an answer does."""
        await self._works.wait()

    def check(self, *_arguments: object) -> None:
        """Refuse a statement while the network is cut."""
        if not self._works.is_set():
            raise ConnectionError("the database cannot be reached")


# The pipeline -------------------------------------------------------------------------------------


class Backup(Pipeline[Archive]):
    """Stores each member of an archive in the bucket, compressed, under its digest."""

    model = Archive
    lock_timeout = 4  # short, so that this example is; the default is 30 s
    heartbeat_trigger = 3
    fetch_delays = (0.1,)

    def __init__(self, name: str, bucket: AsyncClient, network: Network, *, stops_at: int) -> None:
        super().__init__()
        self.replica = name
        self.bucket = bucket
        self.network = network
        self.stops_at = stops_at
        self.digests: dict[str, str] = {}
        self.sent = 0
        self.ended = asyncio.Event()

    def ready(self) -> ColumnElement[bool]:
        """Uploaded archives want a backup."""
        return Archive.status == "uploaded"

    async def process(self, item: PipelineItem[Archive]) -> Outcome:
        """Run a graph over the members."""
        print(f"{self.replica} replica: has the archive")
        digests = self.digests
        graph = Graph("backup")
        graph.on_end(self.tell)
        members = graph.source(members_of(item.row.path), name="members").map(hashed, lanes=2)
        stored = members.map(compressed, lanes=2).amap(self.upload, lanes=8)
        stored.sink(lambda member: digests.update({member.name: member.digest}), name="digests")
        statistics = await run_graph(graph, time_limit=600, keep_going=item.is_trusted)
        print(statistics.table())
        return Apply({"status": "stored", "digests": digests}, unless_changed=[Archive.status])

    async def upload(self, member: Member) -> Member:
        """Store a member, unless the bucket has it."""
        if len(self.digests) >= self.stops_at:
            self.network.cut()
        await self.network.wait()
        place = f"/{member.digest}"
        if (await self.bucket.head(place)).status_code == 404:
            (await self.bucket.put(place, content=member.body)).raise_for_status()
            self.sent += 1
        return member

    def tell(self, error: BaseException | None) -> None:
        """Print how the run ended; no call of it runs any more."""
        how = (
            "to its end" if error is None else f"until its lease was lost ({type(error).__name__})"
        )
        print(f"{self.replica} replica: ran {how}, {len(self.digests)} members, {self.sent} sent")
        self.ended.set()


# Two replicas, one after the other ----------------------------------------------------------------


class Replica:
    """A replica: an engine and a pipeline of its own, behind one network."""

    def __init__(self, name: str, url: str, bucket: AsyncClient, *, stops_at: int) -> None:
        self.network = Network()
        self.engine = create_async_engine(url)
        event.listen(self.engine.sync_engine, "before_cursor_execute", self.network.check)
        self.sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self.backup = Backup(name, bucket, self.network, stops_at=stops_at)
        self.manager = PipelineManager(self.sessions, [self.backup])


async def read_archive(sessions: async_sessionmaker[AsyncSession]) -> Archive:
    """Return the row as it is now."""
    async with sessions() as session:
        return await session.get_one(Archive, 1)


async def wait_until_stored(sessions: async_sessionmaker[AsyncSession]) -> Archive:
    """Return the row once its archive is stored."""
    while True:
        archive = await read_archive(sessions)
        if archive.status == "stored":
            return archive
        await asyncio.sleep(POLL_S)


async def back_up(url: str, archive: Path, bucket: AsyncClient, *, count: int) -> dict[str, str]:
    """Have the first replica lose its network half-way, and the second one take over."""
    first = Replica("first", url, bucket, stops_at=count // 2)
    second = Replica("second", url, bucket, stops_at=count)
    async with second.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with second.sessions.begin() as session:
        session.add(Archive(id=1, path=str(archive)))
    async with first.manager:
        await first.backup.ended.wait()
        left = await read_archive(second.sessions)
        print(f"the row: {left.status}, digests {left.digests}")
        async with second.manager:
            stored = await wait_until_stored(second.sessions)
        first.network.mend()
    for replica in (first, second):
        await replica.engine.dispose()
    print(f"the row: {stored.status}, {len(stored.digests or {})} digests")
    return stored.digests or {}


def make_archive(path: Path) -> int:
    """Pack real files, and return how many."""
    files = [file for name in PACKAGES for file in sorted((LIBRARY / name).rglob("*.py"))]
    with ZipFile(path, "w") as archive:
        for file in files:
            archive.write(file, file.relative_to(LIBRARY).as_posix())
    return len(files)


def is_whole(archive: Path, digests: dict[str, str], bucket: Bucket) -> bool:
    """Return whether the bucket gives back every member, byte for byte."""
    with ZipFile(archive) as members:
        return set(digests) == set(members.namelist()) and all(
            zlib.decompress(bucket.objects[digest]) == members.read(name)
            for name, digest in digests.items()
        )


async def main(folder: Path) -> None:
    """Pack an archive, back it up, and compare."""
    # What a replica without a database has to say, again and again.
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)
    archive = folder / "library.zip"
    count = make_archive(archive)
    print(f"{count} files in the archive")
    url = f"sqlite+aiosqlite:///{folder / 'app.db'}"
    with serving_bucket() as bucket:
        async with asyncio.timeout(WAIT_S_MAX), AsyncClient(base_url=bucket.url) as client:
            digests = await back_up(url, archive, client, count=count)
    print(f"in the bucket: {len(bucket.objects)} objects, sent {bucket.puts} times")
    print(f"unpacked and compared: {'equal' if is_whole(archive, digests, bucket) else 'LOST'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
