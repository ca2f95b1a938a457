"""Hints: lossy wake-ups without data, from a service's commit to the fetchers of this process and
of other replicas.

A hint says "look now", nothing more; polling finds the row anyway. It is raised after the commit,
since a fetcher that looks before sees nothing. A hint may also be for a *topic* that is no model: a
name with a colon, ``stream:usage``, to which a part of a host or a wing attaches.

The notifier exchanges hints with other replicas over one channel to the database
(``database/notify_channel.py``). Any client of that can send them: they are looked up and nothing
else, never passed on, and a flood of them wakes a model once in `WAKE_EVERY_S`. A lost channel is
opened again, and since hints were missed meanwhile, every pipeline then looks once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, finalize

from sqlalchemy import Column, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

from rowlock.clock import exponential, monotonic, rest
from rowlock.database.notify_channel import is_payload, listening
from rowlock.dialects.contract import ChannelConnection
from rowlock.errors import HOST_ERRORS, describe
from rowlock.logs import get_logger
from rowlock.tasks import Supervisor

logger = get_logger(__name__)

_known: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


def declare_intent(model: type, columns: Iterable[Column[Any]]) -> None:
    """Note that a pipeline of `model` was built here, and which columns its services own: what is
    written to one of these puts a parked row back into play.
    """
    _known.setdefault(model, set()).update(column.key for column in columns)


def is_intent(model: type, columns: Iterable[Column[Any]]) -> bool:
    """Whether one of `columns` is a service's own, or nothing in this process can tell."""
    own = _known.get(model)
    return own is None or any(column.key in own for column in columns)


WARNED_NAMES_MAX = 1000
"""Most model names remembered as warned about; past it they are forgotten."""

TOPIC_MARK = ":"
"""Tells the name of a topic from that of a model, which is the name of a class."""

Wake = Callable[[], None]
Relay = Callable[[str], None]


class PipelineHinter:
    """Knows who wants to be woken for which model."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Wake]] = {}
        self._relays: list[Relay] = []
        self._observers: list[Relay] = []
        self._warned: set[str] = set()
        self._has_told_late = False

    def __repr__(self) -> str:
        return f"<PipelineHinter {', '.join(sorted(self._wakes)) or 'nobody listens'}>"

    def attach(self, model_name: str, wake: Wake) -> None:
        """Call `wake` at every hint for a model or topic, in any thread; it must return at once."""
        self._wakes.setdefault(model_name, []).append(wake)

    def detach(self, model_name: str, wake: Wake) -> None:
        """End what `attach` began."""
        wakes = self._wakes.get(model_name, [])
        if wake in wakes:
            wakes.remove(wake)
        if not wakes:
            self._wakes.pop(model_name, None)

    def attach_relay(self, relay: Relay) -> None:
        """Call `relay` with the model's name at every hint, as `attach` does."""
        self._relays.append(relay)

    def detach_relay(self, relay: Relay) -> None:
        """End what `attach_relay` began."""
        if relay in self._relays:
            self._relays.remove(relay)

    def attach_observer(self, observe: Relay) -> None:
        """As `attach_relay`, but it reaches no pipeline: what only observers hear is warned of."""
        self._observers.append(observe)

    def detach_observer(self, observe: Relay) -> None:
        """End what `attach_observer` began."""
        if observe in self._observers:
            self._observers.remove(observe)

    def reaches(self, model: str | type) -> bool:
        """Whether a hint for `model` reaches a pipeline here, or may do so in another process."""
        return _name_of(model) in self._wakes or bool(self._relays)

    def hint_fetch(self, model: str | type, *, but: Wake | None = None) -> None:
        """Wake every pipeline of `model` (the class or its name), or what is attached to a topic,
        from any thread; in other replicas too, if there is a relay.

        `but` is not called: the wake of the caller, which knows already.

        A hint for a model without a pipeline is a warning, once per name, unless another replica
        may run it.
        """
        name = _name_of(model)
        wakes = [wake for wake in self._wakes.get(name, ()) if wake != but]
        relays = self._relays.copy()
        _call_each([*wakes, *(partial(tell, name) for tell in (*relays, *self._observers))], name)
        if wakes or relays or TOPIC_MARK in name or name in self._warned:
            return
        if len(self._warned) >= WARNED_NAMES_MAX:
            self._warned.clear()
        self._warned.add(name)
        logger.warning(
            "A hint reached no pipeline: %(model)s. No started manager of this process works on"
            " it; its rows are found by polling (told once). A process that only hints needs a"
            " manager with notify=True",
            {"model": name},
        )

    def wake(self, model_name: str) -> bool:
        """Wake the pipelines of the model in this process only; return whether there are any."""
        wakes = self._wakes.get(model_name, []).copy()
        _call_each(wakes, model_name)
        return bool(wakes)

    def wake_all(self) -> None:
        """Wake every pipeline here: hints for any of them may have been lost."""
        for model_name in tuple(self._wakes):
            self.wake(model_name)

    def tell_late(self, *names: str) -> None:
        """Warn once that a hint was asked for after the commit that it should follow."""
        if not self._has_told_late:
            self._has_told_late = True
            logger.warning(
                "hint_after_commit for %(model)s was called while the session has no"
                " transaction, so it waits for the next commit of this session: call it before"
                " the commit (told once)",
                {"model": ", ".join(names)},
            )


pipeline_hinter = PipelineHinter()
"""Reaches every started manager of this process."""

_PENDING = "rowlock_pending_hints"
_FORGOTTEN = "rowlock_forgotten_hints"
_PendingHints = dict[SessionTransaction | None, dict[tuple[PipelineHinter, str], None]]
"""By transaction, each hint once: a session may ask for one with every row that it writes."""


def hint_after_commit(
    session: AsyncSession | async_scoped_session[AsyncSession] | Session,
    *models: str | type,
    hinter: PipelineHinter = pipeline_hinter,
) -> None:
    """Hint for `models` once the session's outermost transaction has committed.

    If that transaction, or the savepoint in which this was called, is rolled back, no hint is
    raised. Each model is hinted once per commit. Asked for while the session has no transaction, it
    is about the next one.
    """
    session = session() if isinstance(session, async_scoped_session) else session
    sync_session = session.sync_session if isinstance(session, AsyncSession) else session
    innermost = sync_session.get_nested_transaction() or sync_session.get_transaction()
    if innermost is None and len(sync_session.identity_map):
        # It has read or written rows, in a transaction that is over.
        hinter.tell_late(*map(_name_of, models))
    wanted = dict.fromkeys((hinter, _name_of(model)) for model in models)
    if _PENDING not in sync_session.info:
        sync_session.info[_PENDING] = {}
        event.listen(sync_session, "after_commit", _committed)
        event.listen(sync_session, "after_transaction_end", _ended)
    pending: _PendingHints = sync_session.info[_PENDING]
    pending.setdefault(innermost, {}).update(wanted)
    if innermost is None and _FORGOTTEN not in sync_session.info:
        # A session that was closed, or is never committed again, raises no hint.
        names = map(_name_of, models)
        sync_session.info[_FORGOTTEN] = finalize(sync_session, hinter.tell_late, *names)
        sync_session.info[_FORGOTTEN].atexit = False


def _committed(session: Session) -> None:
    # SQLAlchemy calls this for the release of a savepoint too.
    pending: _PendingHints = session.info[_PENDING]
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        pending.setdefault(savepoint.parent, {}).update(pending.pop(savepoint, {}))
        return
    raised = dict.fromkeys(hint for hints in pending.values() for hint in hints)
    pending.clear()
    for hinter, model in raised:
        # It lets no error of a listener out, which would say that nothing was committed.
        hinter.hint_fetch(model)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    # After a commit nothing is left here; what is left was rolled back, or closed without a commit.
    pending: _PendingHints = session.info[_PENDING]
    pending.pop(transaction, None)
    if transaction.parent is None:
        if _FORGOTTEN in session.info:
            session.info.pop(_FORGOTTEN).detach()
        pending.clear()


def _call_each(calls: Iterable[Wake], model_name: str) -> None:
    """Make every call, whatever the others raise."""
    for call in calls:
        try:
            call()
        except HOST_ERRORS:
            logger.exception("A callback for hints of %(model)s failed", {"model": model_name})


def _name_of(model: object) -> str:
    """Return the name of a model; a row stands for its model, since a hint is never an error."""
    if isinstance(model, str):
        return model
    return model.__name__ if isinstance(model, type) else type(model).__name__


RESEND_AFTER_S = 0.02
"""Least time between two notifications about one model, in seconds."""
WAKE_EVERY_S = 0.02
"""Least time between two wakes of one model by notifications, in seconds."""
CHECK_EVERY_S = 10.0
"""How often a quiet channel is asked whether it still listens, in seconds."""
RECONNECT_DELAY_S = 0.1
RECONNECT_DELAY_S_MAX = 5.0
STOP_S_MAX = 1.0
"""How long a stop waits for the last hints to be sent, in seconds."""
UNSENT_MAX = 1000
"""Most models whose hints wait for being sent; hints for more are dropped, and found by polling."""

_LOOP = "notifier"


class Notifier:
    """Keeps the channel of one replica; without a `name` it is that of the connection's schema."""

    def __init__(self, engine: AsyncEngine, name: str | None, *, hinter: PipelineHinter) -> None:
        self._engine, self._name, self._hinter = engine, name, hinter
        self._supervisor = Supervisor("notifications")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: ChannelConnection | None = None
        self._unsent: dict[str, None] = {}
        self._sent_lately: set[str] = set()
        self._received_again: dict[str, bool] = {}
        self._woken = asyncio.Event()
        self._stopping = False
        self._sent = self._received = self._dropped = self._connects = self._failures = 0
        self._last_error: str | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor.keep(_LOOP, self.run)

    def pass_on(self, model_name: str) -> None:
        """Have other replicas hinted soon; returns at once, from any thread."""
        # Threads add and the loop takes, one by one and never the whole: each step is atomic, so
        # that nothing slips through.
        if model_name in self._unsent:
            return
        if len(self._unsent) >= UNSENT_MAX or not is_payload(model_name):
            self._dropped += 1
            if self._dropped == 1:
                extra = {"model": model_name[:100]}
                logger.warning("A hint cannot be sent to other replicas: %(model)r", extra)
            return
        self._unsent[model_name] = None
        with suppress(RuntimeError):  # a closed loop sends nothing more
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._woken.set)

    async def stop(self) -> None:
        """Send what waits, within `STOP_S_MAX`, and end the loop and its channel."""
        self._stopping = True
        self._woken.set()
        await self._supervisor.wait(_LOOP, timeout_s=STOP_S_MAX)
        await self._supervisor.stop()

    def statistics(self) -> NotificationStatistics:
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
        """Keep a channel open until stopped; hints that came shortly before get one more try."""
        while not self._stopping or (self._unsent and not self._failures):
            try:
                async with listening(
                    self._engine, self._name, heard=self._receive, lost=self._woken.set
                ) as channel:
                    self._channel, self._last_error = channel, None
                    self._connects += 1
                    # Hints of others before this moment were not heard.
                    self._hinter.wake_all()
                    await self._serve(channel)
            # Drivers let errors of any kind through, and each ends one channel only.
            except Exception as error:  # noqa: BLE001
                self._record_failure(error)
            finally:
                self._channel = None
            delay_s = exponential(
                self._failures, first_s=RECONNECT_DELAY_S, most_s=RECONNECT_DELAY_S_MAX
            )
            ends_at = monotonic() + delay_s
            while not self._stopping and (left_s := ends_at - monotonic()) > 0:
                await rest(self._woken, left_s)

    async def _serve(self, channel: ChannelConnection) -> None:
        check_at = monotonic() + CHECK_EVERY_S
        while not (self._stopping or channel.is_lost):
            if monotonic() >= check_at:
                if not await channel.is_listening():
                    raise ConnectionError("the server has forgotten that the connection listens")
                # it has proven itself: one that is lost at once is opened ever more slowly
                self._failures = 0
                check_at = monotonic() + CHECK_EVERY_S
            models = [model for model in self._unsent.copy() if model not in self._sent_lately]
            if models:
                await self._send(channel, models)
            else:
                await rest(self._woken, max(0.0, check_at - monotonic()))
        if channel.is_lost:
            raise ConnectionError("the connection was closed from the other side")
        await self._send(channel, list(self._unsent.copy()))

    async def _send(self, channel: ChannelConnection, models: list[str]) -> None:
        # Taken before: a hint that comes while they are being sent is about a later commit.
        for model in models:
            del self._unsent[model]
        try:
            await channel.notify(models)
        except HOST_ERRORS:  # they are still unsent
            self._unsent.update(dict.fromkeys(models))
            raise
        self._sent += len(models)
        self._sent_lately.update(models)
        asyncio.get_running_loop().call_later(RESEND_AFTER_S, self._send_again, models)

    def _send_again(self, models: list[str]) -> None:
        self._sent_lately.difference_update(models)
        self._woken.set()

    def _receive(self, model_name: str) -> None:
        self._received += 1
        if model_name in self._received_again:
            self._received_again[model_name] = True
        else:
            self._wake(model_name)

    def _wake(self, model_name: str) -> None:
        is_heard = self._hinter.wake(model_name)
        if TOPIC_MARK in model_name:
            # Waiting for a topic needs no manager, so the hinter of all managers knows of it.
            is_heard = pipeline_hinter.wake(model_name) or is_heard
        # A flood of other names would fill the memory.
        if is_heard:
            self._received_again[model_name] = False
            asyncio.get_running_loop().call_later(WAKE_EVERY_S, self._listen_again, model_name)

    def _listen_again(self, model_name: str) -> None:
        if self._received_again.pop(model_name):
            self._wake(model_name)

    def _record_failure(self, error: Exception) -> None:
        self._failures += 1
        self._last_error = describe(error)
        logger.warning(
            "The channel to other replicas was lost; rows are found by polling until it is"
            " back: %(error)s",
            {"error": self._last_error, "failures": self._failures},
        )


@dataclass(frozen=True, slots=True)
class NotificationStatistics:
    """The channel over which a manager exchanges hints with other replicas, at one moment.

    Attributes:
        channel: its name; None while there is no channel.
        listening: whether hints of others are heard at this moment.
        sent: notifications; several hints for a model may share one.
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
