"""A host whose own code raises wherever the library calls it, outside of `process`.

The one idea: what the library calls only to tell something (log calls, listeners, wakes, relays)
raises to the end of the run, and nothing may come of it: no row is lost, late, or left leased. What
decides about a row (`also`, hooks) raises until the faults are over. Each kind has randomness of
its own, so that one more log line does not change what another kind does.

Not here: `process`, which a scenario writes itself, and which kinds a run has (``conditions.py``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final
from unittest import mock

from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import Apply, Event, Outcome, Pipeline, logs, pipeline_hinter, subscribe

from ..environment.processes import current_process
from .conditions import Conditions
from .fault_kinds import Fault

TOLD_CHANCE: Final = 0.3
"""How often a call raises that only tells something."""
HOOK_CHANCE: Final = 0.2
"""How often a call raises that decides about a row."""
FIELDS: Final = (
    "row_id",
    "pipeline",
    "error",
    "worker",
    "model",
    "task",
    "event",
    "rowlock_row_id",
    "rowlock_pipeline",
)
"""What a host's record factory may set, too; `logging` refuses an `extra` that would overwrite
it.
"""
LOGGER: Final = "rowlock"


class HostileHost:
    """Raises in each way that `conditions` have.

    Attributes:
        raised: how often each kind has raised.
    """

    def __init__(self, conditions: Conditions, *, seed: int, is_calm: Callable[[], bool]) -> None:
        self.raised = dict.fromkeys(conditions.hostile, 0)
        self._kinds = conditions.hostile
        self._random = {kind: Random(f"{seed} {kind.name}") for kind in conditions.hostile}
        self._is_calm = is_calm

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Spoil what is there once in a process, for the time of one run."""
        with ExitStack() as stack:
            if Fault.LOGGING in self._kinds:
                stack.enter_context(
                    self._spoilt_logging(self._random[Fault.LOGGING].randrange(len(_WAYS_TO_LOG)))
                )
            if Fault.LISTENERS in self._kinds:
                stack.callback(subscribe(self._listen))
            if Fault.WAKES in self._kinds:
                stack.enter_context(mock.patch.object(pipeline_hinter, "_relays", [self._wake]))
            yield

    def attach(self, pipelines: list[Pipeline[Any]]) -> None:
        """Attach wakes for the models of `pipelines`, as the process whose code runs."""
        if Fault.WAKES in self._kinds:
            for pipeline in pipelines:
                pipeline_hinter.attach(pipeline.leased.name, self._wake)

    def spoil_hooks(self, pipeline: Pipeline[Any]) -> None:
        if Fault.HOOKS not in self._kinds:
            return
        hooks: Any = pipeline
        ready, on_stale, on_refused = pipeline.ready, pipeline.on_stale, pipeline.on_refused

        def spoilt_ready() -> Any:
            self._raise_hook()
            return ready()

        async def spoilt_on_stale(*args: Any) -> None:
            # The host's clean-up is done before: a scenario's check may rest on it.
            result: Any = on_stale(*args)
            if result is not None:
                await result
            self._raise_hook()

        def spoilt_on_refused(*args: Any) -> Outcome:
            self._raise_hook()
            return on_refused(*args)

        hooks.ready, hooks.on_stale, hooks.on_refused = (
            spoilt_ready,
            spoilt_on_stale,
            spoilt_on_refused,
        )

    def spoil_outcome(self, outcome: Any) -> Any:
        """Return an outcome whose `also` raises, now and then, after the host's own."""
        if (
            Fault.HOOKS not in self._kinds
            or not isinstance(outcome, Apply)
            or not self._is_hook_drawn()
        ):
            return outcome
        own = outcome.also

        async def also(session: AsyncSession, now: Any) -> None:
            if own is not None:
                await own(session, now)
            raise self._error(Fault.HOOKS)

        return replace(outcome, also=also)

    @contextmanager
    def _spoilt_logging(self, way: int) -> Iterator[None]:
        logger, factory = logging.getLogger(LOGGER), logging.getLogRecordFactory()
        level, handlers, filters, propagates = (
            logger.level,
            logger.handlers,
            logger.filters,
            logger.propagate,
        )
        logger.handlers, logger.filters, logger.propagate = [logging.NullHandler()], [], False
        logger.setLevel(logging.DEBUG)
        # Else the run before would decide which lines are logged in this one, and no run be
        # replayed.
        logs.forget()
        _WAYS_TO_LOG[way](self, logger)
        try:
            # What logging and the library would say on stderr of each.
            with mock.patch.object(logging, "raiseExceptions", False):
                yield
        finally:
            logger.handlers, logger.filters, logger.propagate = handlers, filters, propagates
            logger.setLevel(level)
            logs.forget()
            logging.setLogRecordFactory(factory)

    def _with_a_raising_handler(self, logger: logging.Logger) -> None:
        logger.handlers = [_Handler(emit=partial(self._raise_told, Fault.LOGGING))]

    def _with_a_raising_filter(self, logger: logging.Logger) -> None:
        handler = _Handler(emit=lambda: None)
        handler.addFilter(self._pass_perhaps)
        logger.handlers = [handler]

    def _with_a_raising_factory(self, _: logging.Logger) -> None:
        make = logging.getLogRecordFactory()

        def factory(name: str, *args: Any, **options: Any) -> logging.LogRecord:
            if name.startswith(LOGGER):
                self._raise_told(Fault.LOGGING)
            return make(name, *args, **options)

        logging.setLogRecordFactory(factory)

    def _with_fields_of_its_own(self, _: logging.Logger) -> None:
        make = logging.getLogRecordFactory()

        def factory(*args: Any, **options: Any) -> logging.LogRecord:
            record = make(*args, **options)
            record.__dict__.update(dict.fromkeys(FIELDS, "the host's"))
            return record

        logging.setLogRecordFactory(factory)

    def _listen(self, _: Event) -> None:
        self._raise_told(Fault.LISTENERS)

    def _wake(self, *_: str) -> None:
        self._raise_told(Fault.WAKES)

    def _raise_told(self, kind: Fault) -> None:
        # A line that is logged in a thread of its own would draw at a moment that nobody has drawn.
        if (
            threading.current_thread() is threading.main_thread()
            and self._random[kind].random() < TOLD_CHANCE
        ):
            raise self._error(kind)

    def _pass_perhaps(self, _: logging.LogRecord) -> bool:
        self._raise_told(Fault.LOGGING)
        return True

    def _raise_hook(self) -> None:
        if self._is_hook_drawn():
            raise self._error(Fault.HOOKS)

    def _is_hook_drawn(self) -> bool:
        # The simulation asks `ready`, too, as no process.
        may = current_process.get() is not None and not self._is_calm()
        return may and self._random[Fault.HOOKS].random() < HOOK_CHANCE

    def _error(self, kind: Fault) -> BaseException:
        self.raised[kind] += 1
        return self._random[kind].choice(_ERRORS)(f"the host's own, in {kind.name.lower()}")


class _Handler(logging.Handler):
    """Calls a function with each record that passes its filters."""

    def __init__(self, *, emit: Callable[[], None]) -> None:
        super().__init__()
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit()


_ERRORS: Final[tuple[type[BaseException], ...]] = (RuntimeError, KeyError, OSError, TimeoutError)
_WAYS_TO_LOG: Final[tuple[Callable[[HostileHost, logging.Logger], None], ...]] = (
    HostileHost._with_a_raising_handler,
    HostileHost._with_a_raising_filter,
    HostileHost._with_a_raising_factory,
    HostileHost._with_fields_of_its_own,
)
