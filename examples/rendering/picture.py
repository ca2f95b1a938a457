"""The work: pixels are worked out, then packed as a PNG. It runs in a worker process and knows
neither HTTP nor the database.

The one idea: whatever must survive an attempt lies in a folder that all attempts see, under a name
that follows from the row. It is written in the attempt's own folder and moved into place whole, so
that nobody ever finds half a file.

Source: the PNG specification, "Datastream structure" and "Filtering".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from rowlock.dispatch import AttemptEvent, Completed, Progress, StageDone, Task

from .tables import Render

STEPS_MAX = 100
"""After so many steps a point is taken to be inside of the set."""
GREYS = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def render(task: Task[Render], *, pictures: Path) -> Iterator[AttemptEvent]:
    """Make a picture in two stages. What an earlier attempt has done, before its process or its
    machine died, is not done again.
    """
    raw, png = pictures / f"{task.id}.raw", pictures / f"{task.id}.png"
    if not task.is_done("raw"):
        pixels = bytearray()
        for number, line in enumerate(lines_of(task.row), start=1):
            pixels += line
            yield Progress(f"{100 * number // height_of(task.row)} %")
        put(raw, bytes(pixels), workdir=task.workdir)
        yield StageDone("raw", raw.name)
    if not task.is_done("encoded"):
        put(png, png_of(raw.read_bytes(), width=task.row.width), workdir=task.workdir)
        yield StageDone("encoded", png.name)
    raw.unlink(missing_ok=True)
    yield Completed({"url": f"/pictures/{png.name}"})


def put(file: Path, content: bytes, *, workdir: Path) -> None:
    """Write a file whole, or not at all."""
    (workdir / file.name).write_bytes(content)
    (workdir / file.name).replace(file)


def height_of(row: Render) -> int:
    """Return the height of the picture, in pixels."""
    return row.width * 3 // 4


def lines_of(row: Render) -> Iterator[bytes]:
    """Yield the lines of pixels from top to bottom, a grey for each pixel."""
    height = height_of(row)
    pixel = 3 / row.zoom / row.width
    for line in range(height):
        y = row.y + (height / 2 - line) * pixel
        yield bytes(
            grey_of(complex(row.x + (column - row.width / 2) * pixel, y))
            for column in range(row.width)
        )


def grey_of(point: complex) -> int:
    """Return how soon `point` runs away, as a grey: black is never."""
    z = 0j
    for step in range(STEPS_MAX):
        z = z * z + point
        if z.real * z.real + z.imag * z.imag > 4:
            return GREYS - 1 - (GREYS - 1) * step // STEPS_MAX
    return 0


def png_of(pixels: bytes, *, width: int) -> bytes:
    """Return a greyscale PNG of `pixels`."""
    lines = [pixels[start : start + width] for start in range(0, len(pixels), width)]
    header = struct.pack(">IIBBBBB", width, len(lines), 8, 0, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + line for line in lines))  # 0: the line is not filtered
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a part of a PNG: its length, its kind, what is in it, and a checksum."""
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
