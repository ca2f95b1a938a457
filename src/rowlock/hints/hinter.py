"""Hints: lossy wake-ups without data, from services to fetchers.

A hint says "look now", nothing more; polling finds the row anyway. It is raised after the commit,
since a fetcher that looks before sees nothing. `pipeline_hinter` reaches every started manager of
the process, and through its relays other processes.

A hint may also be for a *topic* that is no model: a name with a colon, ``stream:usage``, to which
a part of a host or a wing attaches. A process that only writes rows of a topic has no listener for
it, so a hint without one is no news there.

Not here: how a hint gets there (``hints/notifier.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from weakref import finalize

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

from rowlock.logs import get_logger

logger = get_logger(__name__)

WARNED_NAMES_MAX = 1000
"""Most model names remembered as warned about; past it they are forgotten and warned about
again.
"""

TOPIC_MARK = ":"
"""Tells the name of a topic from that of a model, which is the name of a class."""

Wake = Callable[[], None]
Relay = Callable[[str], None]
Observe = Callable[[str], None]


class PipelineHinter:
    """Knows who wants to be woken for which model."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Wake]] = {}
        self._relays: list[Relay] = []
        self._observers: list[Observe] = []
        self._warned: set[str] = set()
        self._has_told_late = False

    def __repr__(self) -> str:
        return f"<PipelineHinter {', '.join(sorted(self._wakes)) or 'nobody listens'}>"

    def attach(self, model_name: str, wake: Wake) -> None:
        """Call `wake` at every hint for `model_name`, the name of a model or of a topic. It must be
        callable from any thread and return at once.
        """
        self._wakes.setdefault(model_name, []).append(wake)

    def detach(self, model_name: str, wake: Wake) -> None:
        """End what `attach` began."""
        wakes = self._wakes.get(model_name, [])
        if wake in wakes:
            wakes.remove(wake)
        if not wakes:
            self._wakes.pop(model_name, None)

    def attach_relay(self, relay: Relay) -> None:
        """Call `relay` with the model's name at every hint. It must be callable from any thread
        and return at once.
        """
        self._relays.append(relay)

    def detach_relay(self, relay: Relay) -> None:
        """End what `attach_relay` began."""
        if relay in self._relays:
            self._relays.remove(relay)

    def attach_observer(self, observe: Observe) -> None:
        """Call `observe` with the model's name at every hint raised here, in the thread that raises
        it. It must return at once.

        Unlike a relay it reaches no pipeline: a hint that only observers hear is warned of.
        """
        self._observers.append(observe)

    def detach_observer(self, observe: Observe) -> None:
        """End what `attach_observer` began."""
        if observe in self._observers:
            self._observers.remove(observe)

    def reaches(self, model: str | type) -> bool:
        """Whether anybody listens for hints of `model`, or may do so in another process."""
        return _name_of(model) in self._wakes or bool(self._relays)

    def hint_fetch(self, model: str | type, *, but: Wake | None = None) -> None:
        """Wake every pipeline of `model` (the class or its name), or what is attached to a topic,
        from any thread; in other replicas too, if there is a relay.

        `but` is not called: the wake of the caller, which knows already.

        A hint for a model without a pipeline is a warning, once per name, unless another replica
        may run it.
        """
        name = _name_of(model)
        wakes = [wake for wake in self._wakes_of(name) if wake != but]
        relays = tuple(self._relays)
        told = (*relays, *self._observers)
        _call_each([*wakes, *(partial(tell, name) for tell in told)], name)
        if not (wakes or relays or TOPIC_MARK in name):
            self._warn(name)

    def wake(self, model_name: str) -> bool:
        """Wake the pipelines of the model here, and nobody elsewhere; return whether there are
        any.
        """
        wakes = self._wakes_of(model_name)
        _call_each(wakes, model_name)
        return bool(wakes)

    def wake_all(self) -> None:
        """Wake every pipeline here: hints for any of them may have been lost."""
        for model_name in tuple(self._wakes):
            self.wake(model_name)

    def _wakes_of(self, model_name: str) -> tuple[Wake, ...]:
        return tuple(self._wakes.get(model_name, ()))

    def tell_late(self, *names: str) -> None:
        """Tell once that a hint was asked for behind the commit that it should follow."""
        if not self._has_told_late:
            self._has_told_late = True
            logger.warning(
                "hint_after_commit for %s was called while the session has no transaction, so it"
                " waits for the next commit of this session: call it before the commit (told once)",
                ", ".join(names),
                extra={"model": ", ".join(names)},
            )

    def _warn(self, name: str) -> None:
        if name in self._warned:
            return
        if len(self._warned) >= WARNED_NAMES_MAX:
            self._warned.clear()
        self._warned.add(name)
        logger.warning(
            "A hint reached no pipeline: %s. No started manager of this process works on it; its"
            " rows are found by polling (told once). A process that only hints needs a manager with"
            " notify=True",
            name,
            extra={"model": name},
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
    raised. Each model is hinted once per commit, however often it was asked for. The session may be
    used again: its next transaction starts without hints. Asked for while the session has no
    transaction, it is about the next one.
    """
    session = session() if isinstance(session, async_scoped_session) else session
    sync_session = session.sync_session if isinstance(session, AsyncSession) else session
    innermost = sync_session.get_nested_transaction() or sync_session.get_transaction()
    if innermost is None and len(sync_session.identity_map):
        # It has read or written rows, in a transaction that is over.
        hinter.tell_late(*map(_name_of, models))
    wanted = dict.fromkeys((hinter, _name_of(model)) for model in models)
    pending = _pending_hints(sync_session)
    pending.setdefault(innermost, {}).update(wanted)
    if innermost is None and _FORGOTTEN not in sync_session.info:
        # A session that was closed, or is never committed again, raises no hint.
        names = map(_name_of, models)
        sync_session.info[_FORGOTTEN] = finalize(sync_session, hinter.tell_late, *names)
        sync_session.info[_FORGOTTEN].atexit = False


def _pending_hints(session: Session) -> _PendingHints:
    if _PENDING not in session.info:
        session.info[_PENDING] = {}
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)
    pending: _PendingHints = session.info[_PENDING]
    return pending


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
        try:
            hinter.hint_fetch(model)
        except BaseException:
            # The commit has happened: to let this out would say that it had not.
            logger.exception("A hint failed after the commit: %s", model)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    # After a commit nothing is left here; what is left was rolled back, or closed without a commit.
    pending: _PendingHints = session.info[_PENDING]
    pending.pop(transaction, None)
    if transaction.parent is None:
        if _FORGOTTEN in session.info:
            session.info.pop(_FORGOTTEN).detach()
        pending.clear()


def _call_each(calls: Iterable[Wake], model_name: str) -> None:
    """Make every call: a bad callback keeps no hint from the others, nor an outcome from being
    settled.
    """
    failures: list[BaseException] = []
    for call in calls:
        try:
            call()
        # A callback of the host's may raise anything, SystemExit included.
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
    # Behind all of them, since logging runs code of the host's as well.
    for failure in failures:
        logger.error(
            "A callback for hints of %s failed",
            model_name,
            extra={"model": model_name},
            exc_info=failure,
        )


def _name_of(model: object) -> str:
    """Return the name of a model; of a row's model if it is a row, since a hint is never an
    error.
    """
    if isinstance(model, str):
        return model
    return model.__name__ if isinstance(model, type) else type(model).__name__
