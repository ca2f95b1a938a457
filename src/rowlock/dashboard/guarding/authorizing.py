"""Who may look and who may act: asked of the host for every request, and refused whenever the
answer is not a `Viewer`.

The one idea: it fails closed. A host's function that raises, takes too long or returns something
else lets nobody through, and the log says so once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.requests import HTTPConnection

from rowlock.containment import contained_task
from rowlock.dashboard.guarding.threads import AuthorizeThreads
from rowlock.errors import ConfigurationError, describe
from rowlock.insight.migrations import PERSON_CHARS_MAX
from rowlock.insight.shown import shown
from rowlock.logs import get_logger

logger = get_logger(__name__)

LOOK: Final = "look"
AUTHORIZE_S_MAX: Final = 5.0
"""Longest time for one answer of the host, in seconds."""
AUTHORIZING_MAX: Final = 256
"""Most questions to the host that are open at once; further ones are refused."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who may do what was asked.

    Attributes:
        name: 1 to 100 characters; it stands in the audit log.

    Raises:
        ValueError: the name is no such text.
    """

    name: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"a viewer's name is a text of 1 to {PERSON_CHARS_MAX} characters")


@dataclass(frozen=True, slots=True)
class ViewerAction:
    """What somebody wants to do.

    Attributes:
        name: ``look``, ``release``, ``park``, ``unpark``, ``make_due``, ``pause`` or ``resume``.
        model: the class of the row that is acted on; None for a pipeline, and if one looks.
        row_id: its key, as text.
        pipeline: the name of the pipeline that is acted on.
    """

    name: str
    model: str | None = None
    row_id: str | None = None
    pipeline: str | None = None

    @property
    def is_look(self) -> bool:
        """Whether nothing is to be changed."""
        return self.name == LOOK


Authorize: TypeAlias = Callable[[Any, ViewerAction], Viewer | Awaitable[Viewer | None] | None]
"""A host's function: called with the request and the action, it returns who that is."""


def anybody_may_look(request: HTTPConnection, action: ViewerAction) -> Viewer | None:
    """Let everybody look, and nobody act: for a page that nobody else can reach."""
    return Viewer("anybody") if action.is_look else None


def is_name(name: object) -> bool:
    """Whether `name` can be a viewer's."""
    return isinstance(name, str) and 0 < len(name.strip()) <= len(name) <= PERSON_CHARS_MAX


class Gatekeeper:
    """Asks the host, and refuses whatever is no clear yes.

    Args:
        authorize: the host's function, async or plain; a plain one is called in a thread.

    Raises:
        ConfigurationError: it cannot be called.
    """

    def __init__(self, authorize: Authorize) -> None:
        if not callable(authorize):
            raise ConfigurationError(
                "authorize is a function of the request and the action that returns a Viewer, or"
                f" None; not {authorize!r:.100}"
            )
        self._authorize = authorize
        self._asking = 0
        self._threads = AuthorizeThreads()

    async def viewer(self, request: HTTPConnection, action: ViewerAction) -> Viewer | None:
        """Return who may do `action`; None if nobody may."""
        if self._asking >= AUTHORIZING_MAX:
            self._refuse(action, "too many questions are open")
            return None
        self._asking += 1
        task = contained_task(self._answer(request, action), name="rowlock: authorize")
        task.add_done_callback(self._answered)
        try:
            await asyncio.wait({task}, timeout=AUTHORIZE_S_MAX)
        finally:
            if not task.done():
                task.cancel()
        return self._judged(task, action)

    def _answered(self, task: asyncio.Task[object]) -> None:
        self._asking -= 1
        # Retrieved here, or Python would tell of an error that nobody awaited.
        if not task.cancelled():
            task.exception()

    def _judged(self, task: asyncio.Task[object], action: ViewerAction) -> Viewer | None:
        if not task.done():
            self._refuse(action, f"no answer within {AUTHORIZE_S_MAX:g} s")
        elif task.cancelled():
            self._refuse(action, "it was cancelled")
        elif (error := task.exception()) is not None:
            self._refuse(action, describe(error) if isinstance(error, Exception) else "it failed")
        elif (answer := task.result()) is None:
            return None
        elif isinstance(answer, Viewer) and is_name(answer.name):
            return answer
        else:
            self._refuse(action, f"it returned a {type(answer).__name__}, and not a Viewer")
        return None

    async def _answer(self, request: HTTPConnection, action: ViewerAction) -> object:
        if self._is_async():
            answer: object = self._authorize(request, action)
        else:
            # One that waits would hold up the loop, and with it the pipelines of this replica.
            answer = await self._threads.call(self._authorize, request, action)
        return await answer if inspect.isawaitable(answer) else answer

    def _is_async(self) -> bool:
        call = getattr(type(self._authorize), "__call__", None)  # noqa: B004 - its code is meant
        return inspect.iscoroutinefunction(self._authorize) or inspect.iscoroutinefunction(call)

    def _refuse(self, action: ViewerAction, why: str) -> None:
        logger.warning(
            "the dashboard lets nobody %s: authorize gave no answer: %s",
            action.name,
            shown(why),
            extra={"action": action.name, "error": shown(why)},
        )
