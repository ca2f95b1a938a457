"""Files with equal contents are found in a folder: a graph without a database.

The one idea: three operators of unlike nature, each with its own lanes: a folder is walked in one
thread, files are read and hashed in four, and what was found is collected in one. Nobody sizes a
queue: a file is read when a lane is free for it, so the graph says before it runs how many files it
can hold at once.

Run it: ``python examples/10_duplicate_files.py [FOLDER]``; without a folder, the standard library
of this Python. It only reads, and ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from rowlock.graph import Graph, run_graph

LANES = 4
LEFT_OUT = {"__pycache__", "site-packages", ".git"}
SHOWN_MAX = 3
"""So many groups of equal files are printed."""
Groups = defaultdict[str, list[Path]]


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder`, without packages and what Python itself writes there."""
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        paths = (Path(name, file) for file in sorted(files))
        yield from (path for path in paths if path.is_file())


def digest_of(path: Path) -> tuple[str, Path]:
    """Read a file and hash it; both release the GIL, so lanes in threads work side by side."""
    return sha256(path.read_bytes()).hexdigest(), path


def skipped(path: Path, error: Exception) -> None:
    """Pass over a file that cannot be read; without this, it would end the run."""
    print(f"skipped {path}: {error}")


async def equal_files(folder: Path) -> Groups:
    """Return the files of each digest, and print what the graph did."""
    found = Groups(list)

    def collect(pair: tuple[str, Path]) -> None:
        digest, path = pair
        found[digest].append(path)  # one lane, so one call at a time

    graph = Graph("duplicates")
    files = graph.source(files_in(folder), name="walk")
    files.map(digest_of, lanes=LANES, on_error=skipped).sink(collect)
    print(graph.text())
    print(f"at most {graph.items_max} files inside at once")
    statistics = await run_graph(graph)
    print(statistics.table())
    print(f"bottleneck: {statistics.bottleneck}")
    return found


def counted_again(folder: Path) -> Groups:
    """Return the same by a plain loop, one file after the other."""
    found = Groups(list)
    for path in files_in(folder):
        try:
            digest, _ = digest_of(path)
        except OSError:
            continue
        found[digest].append(path)
    return found


def as_sets(groups: Groups) -> set[frozenset[Path]]:
    """Return the groups without their order: lanes finish as they finish."""
    return {frozenset(paths) for paths in groups.values()}


async def main(folder: Path) -> None:
    """Find the files that there are more than once."""
    found = await equal_files(folder)
    several = [sorted(group) for group in found.values() if len(group) > 1]
    print(f"{sum(map(len, found.values()))} files, {len(several)} contents more than once")
    several.sort(key=lambda group: group[0].stat().st_size)
    for first, *others in several[-SHOWN_MAX:]:
        size, more = first.stat().st_size, len(others)
        print(f"{first.relative_to(folder)}, {size:,} bytes, and {more} like it")
    is_equal = as_sets(found) == as_sets(counted_again(folder))
    print(f"a plain loop finds {'the same' if is_equal else 'others'}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("stdlib"))))
