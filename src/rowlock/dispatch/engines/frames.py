"""Events between processes: each is a length and a pickle, over a socket of the file system that only this user may open."""

from __future__ import annotations

import asyncio
import pickle
import struct

from rowlock.dispatch.task import Event

FRAME_BYTES_MAX = 16 * 2**20
"""Largest event, in bytes."""

_LENGTH = struct.Struct(">I")


def frame_of(event: Event) -> bytes:
    """Return `event` as it is sent.

    Raises:
        ValueError: it is larger than `FRAME_BYTES_MAX`.
    """
    body = pickle.dumps(event)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"an event of {len(body):,} bytes is too large to be sent; the limit is {FRAME_BYTES_MAX:,}")
    return _LENGTH.pack(len(body)) + body


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """Return the next event; None if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        event: Event = pickle.loads(await reader.readexactly(length))  # noqa: S301 - from a child of this very process
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return event
