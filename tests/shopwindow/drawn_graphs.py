"""The graphs that the docs show as pictures, and what the library draws of them.

Run as a program, it writes the texts into the folder of the pictures; the script beside it
has real Mermaid draw them. `python -m nox -s pictures` does both. The runs take
place in simulated time, so that their figures are always the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rowlock.errors import GraphDeadlockError
from rowlock.graph import Flow, Graph, run_graph
from rowlock.testing import virtual_time

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "design" / "pictures" / "graphs"

HOSTILE = (
    'end"]; x["<b>#1</b>',
    "subgraph a\nclass n0 hot",
    "`**bold**` <script>alert(1)</script>",
    "%%{init: {'theme': 'dark'}}%%",
    "&lt;i&gt; #quot; $$x^2$$ fa:fa-car",
    'back\\slash \\" \\N | {a|b}',
    "🐍 ❤ عربى ×",
)
"""Names by which a picture could be spoiled; a line break is drawn as a space."""


def ingest() -> Graph:
    """Return the graph of the first program, with calls that only take their time."""

    async def download(number: int) -> int:
        await asyncio.sleep(0.3)
        return number

    async def embed(chunks: Sequence[int]) -> list[int]:
        await asyncio.sleep(0.5)
        return list(chunks)

    async def store(_found: object) -> None:
        await asyncio.sleep(0.1)

    def embedded(chunks: Flow[int]) -> Flow[int]:
        return chunks.amap_batch(embed, size=32, within=0.02, lanes=2)

    pages = Graph("ingest").source(range(200), on="loop", name="urls").amap(download, lanes=16)
    parsed = pages.map(abs, lanes=2, name="parse")
    found = parsed.fan_out(lambda one: [one] * 5, embedded, groups=8, name="chunks")
    return found.asink(store, lanes=8)


def diamond() -> Graph:
    """Return a graph with too little room on one of two ways."""
    one, other = Graph("diamond").source(range(500), on="loop", name="numbers").duplicate(2)
    return one.zip(other.batch(100).unbatch(), ahead=16).sink(print, on="loop", name="print")


def hostile() -> Graph:
    """Return a graph whose names could spoil its picture."""
    flow = Graph('"hostile" <b> }').source([1], name=HOSTILE[0])
    for name in HOSTILE[1:-1]:
        flow = flow.map(abs, on="loop", name=name)
    return flow.sink(abs, on="loop", name=HOSTILE[-1])


@virtual_time
async def drawn() -> dict[str, str]:
    """Return the texts of all pictures, by the names of their files."""
    rest, ran, stuck = ingest(), ingest(), diamond()
    await run_graph(ran)
    report = ""
    try:
        await run_graph(stuck)
    except GraphDeadlockError as error:
        report = f"{error.text}\n\ncycle: {' -> '.join(error.cycle)}\n"
    return {
        "at-rest.mmd": rest.mermaid(),
        "at-rest.txt": rest.text(),
        "ran.mmd": ran.mermaid(),
        "deadlock.mmd": stuck.mermaid(),
        "deadlock.txt": report,
        "hostile.mmd": hostile().mermaid(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        with suppress(OSError):
            path.unlink()
    for name, text in drawn().items():
        (FOLDER / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
