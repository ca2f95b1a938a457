"""Schedules: when a row is due next, as a pure function of the time.

A schedule looks forward only. Occurrences that were missed are one, and what took longer than until
the next one begins with the one after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable
from zoneinfo import ZoneInfo

from rowlock.errors import ConfigurationError, SettingsError

EXPRESSION_MAX = 1000
"""Longest cron expression: services may take it from their customers. **Unit** characters."""


@runtime_checkable
class Schedule(Protocol):
    """When a row is due next. `Cron` is one; a class of the host's own may be another."""

    def next_after(self, now: datetime) -> datetime:
        """Return the first occurrence after `now`, both aware."""
        ...


@dataclass(frozen=True, slots=True)
class Cron:
    """Occurrences by a cron expression, in the time of a zone: ``Cron("0 3 * * *",
    "Europe/Berlin")``.

    Where clocks are changed, as Debian's cron does: an occurrence in an hour that does not exist
    is at the first moment after it; one in an hour that exists twice is once, in the first; and
    ``*`` or ``*/n`` for minutes or hours go on through both.

    Attributes:
        expression: minute, hour, day of the month, month and day of the week, as in a crontab; a
            sixth field before them is the second.
        timezone: name of the zone, such as ``"Europe/Berlin"``.

    Raises:
        SettingsError: the expression or the zone is none, or nothing ever occurs.
        ConfigurationError: cronsim is not installed.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        are_texts = isinstance(self.expression, str) and isinstance(self.timezone, str)
        if not are_texts or len(self.expression) > EXPRESSION_MAX:
            raise SettingsError(
                f"Cron takes texts, of {EXPRESSION_MAX} characters at most, such as"
                f' Cron("0 3 * * *", "Europe/Berlin"), not {self.expression!r:.100},'
                f" {self.timezone!r:.100}"
            )
        self.next_after(datetime(2000, 1, 1, tzinfo=UTC))

    def next_after(self, now: datetime) -> datetime:
        """Return the first occurrence after `now`, an aware time, in UTC.

        Raises:
            SettingsError: there is none.
        """
        zone, expression = _zone(self.timezone), self.expression
        try:
            import cronsim  # noqa: PLC0415 - a guest: hosts without schedules do not need it
        except ImportError as error:
            raise ConfigurationError(
                "schedules need cronsim: pip install 'rowlock[cron]'"
            ) from error
        try:
            for occurrence in cronsim.CronSim(expression, now.astimezone(zone)):
                due_at: datetime = occurrence.astimezone(UTC)
                # In the second of two equal hours, the first occurrence found may be in the first.
                if due_at > now:
                    return due_at
        except OverflowError:
            raise SettingsError(
                f"{expression!r:.100} has no occurrence after {now} in the years that Python has"
            ) from None
        except (cronsim.CronSimError, ValueError) as error:
            raise SettingsError(
                f"{expression!r:.100} is no cron expression ({error}); write five fields, such as"
                " '0 3 * * *'"
            ) from error
        raise SettingsError(f"{expression!r:.100} never occurs")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError(
            f"there is no time zone {name!r:.100}; take a name such as 'Europe/Berlin', and install"
            " tzdata where the system has no zones"
        ) from error
