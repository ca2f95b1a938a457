"""What notifications ask of each database: whether its processes can reach each other, and by
which calls of the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.dialects import DialectPart


class ChannelConnection(ABC):
    """One connection of a driver, outside of any pool and of any transaction, that may listen to a
    channel.

    Every answer is bounded by the `timeout_s` that is given, in seconds; an exception means that
    the channel is lost.
    """

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the connection has ended."""

    @abstractmethod
    async def schema(self, *, timeout_s: float) -> str | None:
        """Return the schema that the connection works in."""

    @abstractmethod
    async def listen(
        self, channel: str, *, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> None:
        """Listen from now on; calls back in the event loop with what *other* connections sent, and
        when the connection ends.
        """

    @abstractmethod
    async def notify(self, channel: str, payloads: Sequence[str], *, timeout_s: float) -> None:
        """Send one notification for each of `payloads`; others have them when this returns."""

    @abstractmethod
    async def is_listening(self, channel: str, *, timeout_s: float) -> bool:
        """Ask the server whether this connection listens."""

    @abstractmethod
    async def close(self) -> None:
        """End politely."""

    @abstractmethod
    def terminate(self) -> None:
        """Cut the connection at once."""


class ChannelDialect(ABC):
    """One database's notifications."""

    @abstractmethod
    def check_driver(self, driver: str) -> None:
        """Check that a driver, by SQLAlchemy's name of it, can listen.

        Raises:
            ConfigurationError: it cannot, or the database has no notifications.
        """

    @abstractmethod
    def channel_over(self, driver_connection: Any, driver: str) -> ChannelConnection:
        """The driver was checked."""


CHANNELS: DialectPart[ChannelDialect] = DialectPart("channels", ChannelDialect)
