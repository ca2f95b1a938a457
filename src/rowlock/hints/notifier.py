"""Carries hints to other replicas and takes theirs, over one channel to the database
(``database/notify_channel.py``).

The one idea: a hint is noted at once, from any thread, and sent soon by the notifier's own loop:
after the commit that it is about, as a statement of its own, and not again for the same model
within `RESEND_AFTER_S`. What others say wakes the pipelines here and is never passed on. Whoever
may connect to the database can say it: it is looked up and nothing else, and a flood of it wakes a
model once in `WAKE_EVERY_S`. A lost channel is opened again, and since nobody knows what was said
meanwhile, every pipeline then looks once.

Not here: health. Without a channel a replica polls, as it does without notifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.backoff import exponential
from rowlock.clock import monotonic, rest
from rowlock.database.notify_channel import NotificationChannel, is_payload, listening
from rowlock.errors import describe
from rowlock.hints.hinter import TOPIC_MARK, PipelineHinter, pipeline_hinter
from rowlock.logs import get_logger
from rowlock.supervisor import Supervisor

logger = get_logger(__name__)

RESEND_AFTER_S = 0.02
"""Least time between two notifications about one model, in seconds; hints in between are one
notification at its end.
"""
WAKE_EVERY_S = 0.02
"""Least time between two wakes of one model by notifications, in seconds; all that come in
between are one wake at its end.
"""
CHECK_EVERY_S = 10.0
"""How often a quiet channel is asked whether it still listens, in seconds."""
RECONNECT_DELAY_S = 0.1
RECONNECT_DELAY_S_MAX = 5.0
STOP_S_MAX = 1.0
"""How long a stop waits for the last hints to be sent, in seconds."""
UNSENT_MAX = 1000
"""Most models whose hints wait for being sent; hints for more are dropped, and found by polling."""

_LOOP = "notifier"


@dataclass(frozen=True, slots=True)
class Send:
    """Notify of these models now."""

    models: list[str]


@dataclass(frozen=True, slots=True)
class WaitForHint:
    """Wait for a hint, at most for `seconds`."""

    seconds: float


def plan_sending(
    unsent: Iterable[str], rests_until: Mapping[str, float], *, now: float, check_at: float
) -> Send | WaitForHint:
    """Decide which models are notified of now, or for how long there is nothing to do.

    A model that was notified of waits until it has rested; nobody rests past the next check of the
    channel.
    """
    waiting = list(unsent)
    models = [model for model in waiting if rests_until.get(model, now) <= now]
    if models:
        return Send(models)
    ends_at = min((rests_until[model] for model in waiting), default=check_at)
    return WaitForHint(max(0.0, min(ends_at, check_at) - now))


class Notifier:
    """Keeps the channel of one replica.

    Args:
        engine: of the database at which the replicas meet.
        name: names their channel; None is the connection's schema.
        hinter: reaches the pipelines that notifications of others are for.
    """

    def __init__(self, engine: AsyncEngine, name: str | None, *, hinter: PipelineHinter) -> None:
        self._engine = engine
        self._name = name
        self._hinter = hinter
        self._supervisor = Supervisor("notifications")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: NotificationChannel | None = None
        self._unsent: dict[str, None] = {}
        self._rests_until: dict[str, float] = {}
        self._received_again: dict[str, bool] = {}
        self._woken = asyncio.Event()
        self._stopping = False
        self._sent = self._received = self._dropped = self._connects = self._failures = 0
        self._last_error: str | None = None

    def start(self) -> None:
        """Start the loop, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._supervisor.keep(_LOOP, self.run)

    def pass_on(self, model_name: str) -> None:
        """Have other replicas hinted soon; returns at once, from any thread."""
        # Threads add and the loop takes, one by one and never the whole: each step is atomic, so
        # that nothing slips through.
        if model_name in self._unsent:
            return
        if len(self._unsent) >= UNSENT_MAX or not is_payload(model_name):
            self._drop(model_name)
            return
        self._unsent[model_name] = None
        self._wake_from_anywhere()

    async def stop(self) -> None:
        """Send what waits, within `STOP_S_MAX`, and end the loop and its channel."""
        self._stopping = True
        self._woken.set()
        await self._supervisor.wait({_LOOP}, timeout_s=STOP_S_MAX)
        await self._supervisor.stop()

    def statistics(self) -> NotificationStatistics:
        """Return a snapshot of the channel and of what went over it."""
        channel = self._channel
        return NotificationStatistics(
            channel=None if channel is None else channel.name,
            listening=channel is not None and not channel.is_lost,
            sent=self._sent,
            received=self._received,
            dropped=self._dropped,
            reconnects=max(0, self._connects - 1),
            failures=self._failures,
            last_error=self._last_error,
        )

    async def run(self) -> None:
        """Keep a channel open until stopped; what was hinted shortly before is worth one more
        try.
        """
        while not self._stopping or (self._unsent and not self._failures):
            try:
                async with listening(
                    self._engine, self._name, heard=self._receive, lost=self._woken.set
                ) as channel:
                    self._channel = channel
                    self._begin()
                    await self._serve(channel)
            # Drivers let errors of any kind through, and each ends one channel only.
            except Exception as error:  # noqa: BLE001
                self._record_failure(error)
            finally:
                self._channel = None
            await self._rest_before_reconnecting()

    def _begin(self) -> None:
        self._connects += 1
        self._last_error = None
        # Whatever was said before this moment was not heard.
        self._hinter.wake_all()

    async def _serve(self, channel: NotificationChannel) -> None:
        check_at = monotonic() + CHECK_EVERY_S
        while not (self._stopping or channel.is_lost):
            if monotonic() >= check_at:
                await channel.check()
                # it has proven itself: one that is lost at once is opened ever more slowly
                self._failures = 0
                check_at = monotonic() + CHECK_EVERY_S
            match plan_sending(
                self._unsent.copy(), self._rests_until, now=monotonic(), check_at=check_at
            ):
                case Send(models):
                    await self._send(channel, models)
                case WaitForHint(seconds):
                    await rest(self._woken, seconds)
        if channel.is_lost:
            raise ConnectionError("the connection was closed from the other side")
        await self._send(channel, list(self._unsent.copy()))

    async def _send(self, channel: NotificationChannel, models: list[str]) -> None:
        # Taken before: a hint that comes while they are being sent is about a later commit.
        for model in models:
            del self._unsent[model]
        try:
            await channel.notify(models)
        except BaseException:
            self._unsent.update(dict.fromkeys(models))
            raise
        self._sent += len(models)
        now = monotonic()
        still_resting = {model: until for model, until in self._rests_until.items() if until > now}
        self._rests_until = still_resting | dict.fromkeys(models, now + RESEND_AFTER_S)

    async def _rest_before_reconnecting(self) -> None:
        delay_s = exponential(
            self._failures, first_s=RECONNECT_DELAY_S, most_s=RECONNECT_DELAY_S_MAX
        )
        ends_at = monotonic() + delay_s
        while not self._stopping and (left_s := ends_at - monotonic()) > 0:
            await rest(self._woken, left_s)

    def _receive(self, model_name: str) -> None:
        self._received += 1
        if model_name in self._received_again:
            self._received_again[model_name] = True
        else:
            self._wake(model_name)

    def _wake(self, model_name: str) -> None:
        # Only names that mean something here are remembered, or a flood of others would fill the
        # memory.
        if self._wake_here(model_name):
            self._received_again[model_name] = False
            asyncio.get_running_loop().call_later(WAKE_EVERY_S, self._listen_again, model_name)

    def _wake_here(self, model_name: str) -> bool:
        """Wake whoever listens; return whether there is anybody. Those who wait for a topic need no
        manager, so the hinter of all managers knows them.
        """
        is_heard = self._hinter.wake(model_name)
        return (TOPIC_MARK in model_name and pipeline_hinter.wake(model_name)) or is_heard

    def _listen_again(self, model_name: str) -> None:
        if self._received_again.pop(model_name):
            self._wake(model_name)

    def _drop(self, model_name: str) -> None:
        self._dropped += 1
        if self._dropped == 1:
            logger.warning(
                "A hint cannot be sent to other replicas: %r",
                model_name[:100],
                extra={"model": model_name[:100]},
            )

    def _wake_from_anywhere(self) -> None:
        with suppress(RuntimeError):  # a closed loop has nobody to wake
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._woken.set)

    def _record_failure(self, error: Exception) -> None:
        self._failures += 1
        self._last_error = describe(error)
        logger.warning(
            "The channel to other replicas was lost; rows are found by polling until it is"
            " back: %s",
            self._last_error,
            extra={"error": self._last_error, "failures": self._failures},
        )


@dataclass(frozen=True, slots=True)
class NotificationStatistics:
    """The channel over which a manager exchanges hints with other replicas, at one moment.

    Attributes:
        channel: its name; None while there is no channel.
        listening: whether hints of others are heard at this moment. If not, rows are found by
            polling.
        sent: notifications sent; several hints for a model may share one.
        received: notifications of other replicas.
        dropped: hints that could not be sent: the name is no payload, or too many models waited.
        reconnects: how often the channel was opened again.
        failures: how often it was lost, or could not be opened, since it last proved itself.
        last_error: why there is no channel; None while there is one.
    """

    channel: str | None
    listening: bool
    sent: int
    received: int
    dropped: int
    reconnects: int
    failures: int
    last_error: str | None
