"""What is done with a document: its text is taken out of the HTML, cut into chunks, and each chunk
becomes a vector. Child processes import this file, so it starts nothing and imports little.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import unescape
from typing import NamedTuple

CHUNK_CHARS = 500
DIMENSIONS = 64
GRAM_CHARS = 3
Vector = tuple[float, ...]


class Body(NamedTuple):
    """The bytes of one document, as they were downloaded."""

    document_id: int
    html: bytes


class Page(NamedTuple):
    """The text of one document."""

    document_id: int
    sha256: str
    text: str


class Chunk(NamedTuple):
    """A part of a text, small enough for one vector."""

    document_id: int
    number: int
    text: str


def parsed(body: Body) -> Page:
    """Return the text of a document: pure Python, so a matter for a process."""
    text = re.sub(r"<[^>]*>", " ", body.html.decode())
    return Page(body.document_id, sha256(body.html).hexdigest(), unescape(text))


def chunks_of(page: Page) -> Iterator[Chunk]:
    """Yield the chunks of a text."""
    for number, text in enumerate(textwrap.wrap(page.text, CHUNK_CHARS)):
        yield Chunk(page.document_id, number, text)


def vector_of(text: str) -> Vector:
    """Return how often each group of letters occurs, hashed into a few numbers: an embedding
    without a model.
    """
    counts = [0.0] * DIMENSIONS
    for start in range(len(text) - GRAM_CHARS + 1):
        counts[zlib.crc32(text[start : start + GRAM_CHARS].lower().encode()) % DIMENSIONS] += 1
    length = math.hypot(*counts) or 1.0
    return tuple(round(count / length, 6) for count in counts)


def embedded(journal: str, chunks: Sequence[Chunk]) -> list[Vector]:
    """Return a vector for each chunk, in one call for chunks of many documents.

    `journal` gets a line for each call, for the recount.
    """
    line = " ".join(f"{chunk.document_id}:{chunk.number}" for chunk in chunks)
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
    return [vector_of(chunk.text) for chunk in chunks]
