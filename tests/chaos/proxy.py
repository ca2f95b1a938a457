"""A proxy before the server that cuts connections, stalls them, loses one half of a COMMIT, and
answers late.

The one idea: it reads just enough of the protocol to know a COMMIT when it sees one. After the
start-up every message is a letter, its length and its content; ``Q`` with the text COMMIT is the
question, and ``C`` with that tag the answer.

Latency is that of the answers: one wait in each round trip, since two of half a millisecond would
take two milliseconds.

Not here: when what goes wrong (``monkey.py``).

Source: PostgreSQL "Message Formats" (55.7).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import takewhile

from sqlalchemy import URL

CHUNK_BYTES = 65_536


class Lost(Enum):
    """Which part of a COMMIT goes astray: then the server knows nothing of it, or has done it."""

    QUESTION = "the question"
    ANSWER = "the answer"


class Messages:
    """Cuts a stream of one direction into messages.

    Attributes:
        has_start: whether the first message has no letter: what a client says first.
    """

    def __init__(self, *, has_start: bool) -> None:
        self.has_start = has_start
        self._rest = b""

    def take(self, read: bytes) -> list[bytes]:
        self._rest += read
        messages = []
        while len(self._rest) >= (prefix := 4 if self.has_start else 5):
            end = prefix - 4 + struct.unpack("!I", self._rest[prefix - 4 : prefix])[0]
            if len(self._rest) < end:
                break
            messages.append(self._rest[:end])
            self._rest, self.has_start = self._rest[end:], False
        return messages


def asks_for_commit(message: bytes) -> bool:
    """Whether a message of a client is a COMMIT."""
    return message[:1] == b"Q" and message[5:].rstrip(b"\0; ").upper() == b"COMMIT"


def answers_commit(message: bytes) -> bool:
    """Whether a message of the server says that a COMMIT is done."""
    return message[:1] == b"C" and message[5:] == b"COMMIT\0"


class Proxy:
    """Stands between one replica and the server.

    Attributes:
        port: on which it listens, on the loopback.
        commits_lost: how many questions and answers went astray.
    """

    def __init__(self, server: URL, *, latency_s: float = 0.0) -> None:
        """Name the server by its URL, with a Unix socket, and what each round trip takes;
        nothing listens yet.
        """
        host, number = server.query.get("host") or server.host, server.port or 5432
        self._socket = f"{host}/.s.PGSQL.{number}"
        self.port = 0
        self.commits_lost = 0
        self._latency_s = latency_s
        self._armed: Lost | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._stalls = 0
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen; again, after `stop`, at the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for pair in self._pairs:
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> int:
        """Cut every connection at once, without a farewell, and return how many there were."""
        count = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        return count

    async def stall(self, seconds: float) -> None:
        """Let nothing through for a while, in neither direction: connections are accepted, and
        nobody answers.
        """
        self._stalls += 1
        self._flows.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._stalls -= 1
            if not self._stalls:
                self._flows.set()

    def lose_next_commit(self, part: Lost) -> None:
        """Lose this part of the next COMMIT that passes, and its connection with it."""
        self._armed = part

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.create_task(self._serve(reader, writer))
        self._pairs.add(pair)
        pair.add_done_callback(self._pairs.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._flows.wait()
            from_server, upstream = await asyncio.open_unix_connection(self._socket)
            self._writers.add(upstream)
            there = self._pass_on(
                reader,
                upstream,
                has_start=True,
                is_lost=self._loses(Lost.QUESTION, asks_for_commit),
            )
            answers = asyncio.StreamReader() if self._latency_s else from_server
            back = self._pass_on(
                answers, writer, has_start=False, is_lost=self._loses(Lost.ANSWER, answers_commit)
            )
            tasks = {asyncio.create_task(there), asyncio.create_task(back)}
            # Not waited for: when the server has said its last word, some words are on their way.
            late = (
                {asyncio.create_task(self._delay(from_server, answers))}
                if self._latency_s
                else set()
            )
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                tasks |= late
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            # The server is away: the client is told by the end of its connection.
            pass
        finally:
            for one in {writer, upstream} - {None}:
                assert one is not None
                self._writers.discard(one)
                one.transport.abort()

    async def _delay(self, source: asyncio.StreamReader, late: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        try:
            while read := await source.read(CHUNK_BYTES):
                loop.call_later(self._latency_s, late.feed_data, read)
        finally:
            loop.call_later(self._latency_s, late.feed_eof)

    def _loses(self, part: Lost, is_commit: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        def loses(message: bytes) -> bool:
            if self._armed is not part or not is_commit(message):
                return False
            self._armed = None
            self.commits_lost += 1
            return True

        return loses

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        has_start: bool,
        is_lost: Callable[[bytes], bool],
    ) -> None:
        messages = Messages(has_start=has_start)
        with suppress(OSError):
            while read := await source.read(CHUNK_BYTES):
                await self._flows.wait()
                whole = messages.take(read)
                passing = list(takewhile(lambda message: not is_lost(message), whole))
                target.write(b"".join(passing))
                await target.drain()
                if len(passing) < len(whole):
                    return
