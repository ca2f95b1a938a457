"""No notifications on SQLite."""

from __future__ import annotations

from typing import Any, NoReturn

from rowlock.database.channel_dialect import ChannelDialect
from rowlock.errors import ConfigurationError, InternalError


class SqliteChannels(ChannelDialect):
    """A file tells nobody that it was written."""

    def check_driver(self, driver: str) -> NoReturn:
        """Refuse: other processes cannot be told anything."""
        raise ConfigurationError(
            "notify needs PostgreSQL; sqlite cannot tell other processes anything. Leave it out"
            " there, where rows are found by polling: notify=engine.dialect.name == 'postgresql'"
        )

    def channel_over(self, driver_connection: Any, driver: str) -> NoReturn:
        """Refuse: no driver passes the check."""
        raise InternalError("SQLite has no notifications")
