"""Graphs as a host writes them: the members of one archive, files with equal contents, and pages
whose chunks share calls.
"""

from __future__ import annotations

import asyncio
import textwrap
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest

from rowlock.errors import GraphInterrupted
from rowlock.graph import Flow, Graph, run_graph

from ..runs import count_references


class Member(NamedTuple):
    name: str
    body: bytes
    digest: str = ""


class Archive:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "archive.zip"
        self.bodies = {f"{number}.txt": b"x" * 1000 * number for number in range(30)}
        self.was_closed = False
        with ZipFile(self.path, "w") as archive:
            for name, body in self.bodies.items():
                archive.writestr(name, body)

    def members(self) -> Iterator[Member]:
        with ZipFile(self.path) as archive:
            yield from (Member(name, archive.read(name)) for name in archive.namelist())
        self.was_closed = archive.fp is None


def hashed(one: Member) -> Member:
    return one._replace(digest=sha256(one.body).hexdigest())


def compressed(one: Member) -> Member:
    return one._replace(body=zlib.compress(one.body))


def archive_graph(
    archive: Archive, upload: Callable[[Member], Any]
) -> tuple[Graph, dict[str, str]]:
    """Return the graph of one archive, and where its digests go."""
    digests: dict[str, str] = {}
    graph = Graph("backup")
    members = graph.source(archive.members()).map(hashed, lanes=2)
    members = members.map(compressed, lanes=2).amap(upload, lanes=8)
    members.sink(lambda member: digests.update({member.name: member.digest}))
    return graph, digests


async def test_members_of_an_archive(tmp_path: Path) -> None:
    """A member would be stored without its digest, or twice."""
    archive = Archive(tmp_path)
    uploaded: list[str] = []

    async def upload(one: Member) -> Member:
        await asyncio.sleep(0)
        uploaded.append(one.name)
        return one

    graph, digests = archive_graph(archive, upload)
    statistics = await run_graph(graph, time_limit=600)
    assert digests == {name: sha256(body).hexdigest() for name, body in archive.bodies.items()}
    assert sorted(uploaded) == sorted(archive.bodies)
    assert archive.was_closed
    assert "hashed" in statistics.table()


async def test_an_archive_whose_lease_is_lost(tmp_path: Path) -> None:
    """Members would be stored for a row that another replica works on."""
    archive = Archive(tmp_path)
    is_trusted = True

    async def upload(one: Member) -> Member:
        nonlocal is_trusted
        assert is_trusted
        is_trusted = False
        return one

    graph, digests = archive_graph(archive, upload)
    with pytest.raises(GraphInterrupted):
        await run_graph(graph, keep_going=lambda: is_trusted)
    assert not digests


def files_of(folder: Path) -> Iterator[Path]:
    yield from folder.iterdir()


async def test_files_with_equal_contents(tmp_path: Path) -> None:
    """A file that cannot be read would end the search, or be taken for a copy."""
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(str(number % 6))
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    same: defaultdict[str, list[Path]] = defaultdict(list)
    skipped: list[Path] = []

    def digest_of(path: Path) -> tuple[str, Path]:
        return sha256(path.read_bytes()).hexdigest(), path

    graph = Graph("duplicates")
    digests = graph.source(files_of(tmp_path)).map(
        digest_of, lanes=4, on_error=lambda path, _error: skipped.append(path)
    )
    digests.sink(lambda found: same[found[0]].append(found[1]))
    await run_graph(graph)
    assert sorted(len(paths) for paths in same.values()) == [3, 3, 3, 3, 4, 4]
    assert [path.name for path in skipped] == ["gone.txt"]


async def test_chunks_of_all_pages_share_calls() -> None:
    """A call would be made for each page, or a page get the vectors of another."""
    sizes: list[int] = []
    texts = {f"page {number}": f"text{number} " * (10 * number) for number in range(12)}

    async def embed(chunks: Sequence[str]) -> list[int]:
        sizes.append(len(chunks))
        await asyncio.sleep(0)
        return [zlib.crc32(chunk.encode()) for chunk in chunks]

    def chunks_of(page: str) -> list[str]:
        return textwrap.wrap(texts[page], 50)

    def embedded(chunks: Flow[str]) -> Flow[int]:
        return chunks.amap_batch(embed, size=16, within=0.02, lanes=2)

    graph = Graph("ingest")
    found: dict[str, list[int]] = {}
    flow = graph.source(texts).fan_out(chunks_of, embedded, groups=6)
    flow.sink(lambda one: found.update([one]), on="loop")
    await run_graph(graph)
    expected = {page: [zlib.crc32(one.encode()) for one in chunks_of(page)] for page in texts}
    assert found == expected
    assert len(sizes) < sum(bool(chunks) for chunks in expected.values())


async def test_bodies_in_memory_stay_below_the_bound() -> None:
    """A host would plan its memory by a number that is too low."""
    lock = threading.Lock()
    alive = most = 0

    class Body:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    async def stored(body: Body) -> Body:
        await asyncio.sleep(0)
        return body

    graph = Graph()
    flow = graph.source(Body() for _ in range(500)).map(lambda body: body, lanes=3)
    flow.amap(stored, lanes=4, keep_order=True).map(lambda body: body, lanes=2).sink(id, lanes=2)
    await run_graph(graph)
    count_references()
    assert alive == 0
    # A value that was handed on may live on in the frames of its call, one for each lane.
    assert 5 < most <= graph.items_max + len(graph.nodes)
