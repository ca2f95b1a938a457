"""What type checkers say of graphs. Never run: `test_pins.py` has it checked.

A line that ends in ``# refused`` is an error for each of them, and no other line is. The three
programs are those of the design: rows through a graph, a graph in one item, and one without a
database.
"""

from __future__ import annotations

import re
import textwrap
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Never, assert_type
from zipfile import ZipFile

from sqlalchemy import ColumnElement
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, Outcome, Park, PipelineItem
from rowlock.graph import Flow, Graph, GraphPipeline, Items, Outcomes, StandingGraph


class Base(DeclarativeBase):
    """The host's base."""


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    url: Mapped[str]


class Page(NamedTuple):
    sha256: str
    text: str


Vector = list[float]
Item = PipelineItem[Document]


def parse(body: bytes) -> Page:
    return Page(sha256(body).hexdigest(), re.sub(r"<[^>]*>", " ", body.decode()))


def chunks_of(page: Page) -> list[str]:
    return textwrap.wrap(page.text, 500)


async def embed(chunks: Sequence[str]) -> list[Vector | Exception]:
    return [[float(len(chunk))] for chunk in chunks]


async def download(item: Item) -> bytes | Park:
    return item.row.url.encode() or Park("gone")


async def store(found: tuple[Page, list[Vector]]) -> Apply:
    return Apply({"sha256": found[0].sha256})


# Program a: rows through a graph; an outcome leaves at once.


def embedded(chunks: Flow[str, Outcome]) -> Flow[Vector, Outcome]:
    return chunks.amap_batch(embed, size=32, within=0.02, lanes=2)


def build(items: Flow[Item, Outcome]) -> Flow[Outcome | None, Outcome]:
    bodies = items.amap(download, lanes=16, timeout=30)
    assert_type(bodies, Flow[bytes, Outcome])
    pages = bodies.map(parse, lanes=2, on="process")
    assert_type(pages, Flow[Page, Outcome])
    found = pages.fan_out(chunks_of, embedded)
    assert_type(found, Flow[tuple[Page, list[Vector]], Outcome])
    return found.amap(store, lanes=8)


def build_in_one(items: Flow[Item, Outcome]) -> Flow[Outcome | None, Outcome]:
    return (
        items.amap(download, lanes=16, timeout=30)
        .map(parse, lanes=2, on="process")
        .fan_out(chunks_of, embedded)
        .amap(store, lanes=8)
    )


class Ingest(GraphPipeline[Document]):
    model = Document

    def ready(self) -> ColumnElement[bool]:
        return Document.url != ""

    def build(self, items: Items[Document]) -> Outcomes:
        assert_type(items, Flow[Item, Outcome])
        return (
            items.amap(self.download, lanes=16, timeout=30)
            .map(parse, lanes=2, on="process")
            .fan_out(chunks_of, self.embedded)
            .amap(self.store, lanes=8)
        )

    def embedded(self, chunks: Flow[str, Outcome]) -> Flow[Vector, Outcome]:
        return chunks.amap_batch(embed, size=32, within=0.02, lanes=2)

    async def download(self, item: PipelineItem[Document]) -> bytes | Park:
        return await download(item)

    async def store(self, found: tuple[Page, list[Vector]]) -> Apply:
        return await store(found)


class WrongIngest(Ingest):
    def build(self, items: Items[Document]) -> Outcomes:
        return items.amap(self.download)  # refused


async def standing(ingest: Ingest) -> None:
    def paged(bodies: Flow[bytes]) -> Flow[Page]:
        return bodies.map(parse)

    async with StandingGraph(paged) as graph:
        assert_type(graph, StandingGraph[bytes, Page])
        assert_type(await graph.submit(b""), Page)
        await graph.submit("")  # refused
    StandingGraph(parse)  # refused
    Ingest(workers_nums=3)  # refused
    assert_type(ingest.graph, Graph)


def wrong_rows(items: Flow[Item, Outcome]) -> None:
    items.map(parse)  # refused
    items.amap(download).map(chunks_of)  # refused
    items.amap(download).map(parse).fan_out(parse, embedded)  # refused
    items.amap(download).map(parse).fan_out(str.split, embedded)  # refused
    items.amap(download).map(parse).amap(store)  # refused
    items.amap(download).map(parse, on="cloud")  # refused
    items.amap(parse)  # refused
    items.amap(download, lanes="2")  # refused
    items.amap(download, on="thread")  # refused
    items.amap(download).map(parse).batch(3).amap(embed)  # refused


# Program b: a graph in one item.


class Member(NamedTuple):
    name: str
    body: bytes
    digest: str = ""


def members_of(path: str) -> Iterator[Member]:
    with ZipFile(path) as archive:
        yield from (Member(name, archive.read(name)) for name in archive.namelist())


def hashed(one: Member) -> Member:
    return one._replace(digest=sha256(one.body).hexdigest())


def compressed(one: Member) -> Member:
    return one._replace(body=zlib.compress(one.body))


async def upload(one: Member) -> Member:
    return one


def archive(path: str, digests: dict[str, str]) -> None:
    graph = Graph("backup")
    members = graph.source(members_of(path)).map(hashed, lanes=2)
    assert_type(members, Flow[Member, Never])
    members = members.map(compressed, lanes=2).amap(upload, lanes=8)
    ended = members.sink(lambda member: digests.update({member.name: member.digest}))
    assert_type(ended, Graph)


def wrong_archive(graph: Graph) -> None:
    graph.source(members_of("a")).map(parse)  # refused
    graph.source(members_of("a")).sink(parse)  # refused
    graph.source(members_of("a")).map(hashed, keep_order=parse)  # refused
    graph.source(members_of("a")).map(hashed, on_error=parse)  # refused
    graph.source(3)  # refused


# Program c: files with equal contents.


def digest_of(path: Path) -> tuple[str, Path]:
    return sha256(path.read_bytes()).hexdigest(), path


def duplicates(folder: Path, same: defaultdict[str, list[Path]]) -> Graph:
    graph = Graph("duplicates")
    files = graph.source(path for path in folder.rglob("*") if path.is_file())
    assert_type(files, Flow[Path])
    digests = files.map(digest_of, lanes=4, on_error=lambda path, error: print(path.name, error))
    assert_type(digests, Flow[tuple[str, Path]])
    digests.sink(lambda found: same[found[0]].append(found[1]))
    return graph


# The other operators.


async def lines_of(path: Path) -> AsyncIterator[str]:
    yield path.name


def others(graph: Graph, models: list[Callable[[Path], int]]) -> None:
    paths = graph.source([Path()])
    assert_type(graph.source(lines_of(Path())), Flow[str])
    assert_type(paths.map(models), Flow[int])
    assert_type(paths.filter(Path.is_file, keep_order=True), Flow[Path])
    assert_type(paths.tap(print).limit(3).buffer(2), Flow[Path])
    assert_type(paths.flat_map(Path.iterdir), Flow[Path])
    assert_type(paths.aflat_map(lines_of), Flow[str])
    assert_type(paths.batch(10, within=1), Flow[list[Path]])
    assert_type(paths.batch(10).unbatch(), Flow[Path])
    assert_type(paths.split(Path.is_file), tuple[Flow[Path], Flow[Path]])
    assert_type(paths.duplicate(2), list[Flow[Path]])
    assert_type(paths.partition(2, lambda path: path.suffix), list[Flow[Path]])
    assert_type(paths.zip(graph.source([1])), Flow[tuple[Path, int]])
    assert_type(paths.merge(graph.source([1])), Flow[Path | int])
    assert_type(paths.merge_ordered(graph.source([Path()])), Flow[Path])
    assert_type(paths.map_batch(stats_of, size=3), Flow[int])
    assert_type(paths.asink(touched), Graph)
    paths.unbatch()  # refused
    paths.aflat_map(Path.iterdir)  # refused
    paths.zip([1])  # refused
    paths.map_batch(digest_of, size=3)  # refused
    paths.asink(digest_of)  # refused


def stats_of(paths: Sequence[Path]) -> list[int]:
    return [path.stat().st_size for path in paths]


def touched(path: Path) -> Awaitable[None]:
    raise NotImplementedError(path)
