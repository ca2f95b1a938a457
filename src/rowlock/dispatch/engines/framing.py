"""What processes say to each other: each frame is a length and a pickle, over a socket that only
this user may open.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

FRAME_BYTES_MAX = 16 * 2**20
"""Largest event, in bytes."""
ACK = b"\x01"
"""What the dispatcher answers to the process's id and to each `StageDone`, when it asks for what
comes next; to nothing else.
"""

_LENGTH = struct.Struct(">I")


def frame_of(message: object) -> bytes:
    """Return an event, or whatever else is `message`, as it is sent.

    Raises:
        ValueError: it is larger than `FRAME_BYTES_MAX`.
    """
    body = pickle.dumps(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(
            f"an event of {len(body):,} bytes is too large to be sent; the limit is"
            f" {FRAME_BYTES_MAX:,}"
        )
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Return what is said next; None, which nobody says, if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        # From a child of this very process.
        return pickle.loads(await reader.readexactly(length))  # noqa: S301
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
