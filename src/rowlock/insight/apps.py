"""Finds the host's pipelines, for a command that runs beside the host: ``--app module:attribute``.

The one idea: the command runs in the container as it was deployed, and imports what the host
imports. Nothing is started: a manager is read, never entered.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.app_names import app_of_project
from rowlock.clock import monotonic
from rowlock.errors import AppError, describe
from rowlock.insight.asking import engine_of
from rowlock.insight.insight import Insight
from rowlock.insight.observer import Observer
from rowlock.insight.shown import shown

APP_VARIABLE: Final = "ROWLOCK_APP"
DATABASE_VARIABLE: Final = "ROWLOCK_DATABASE"
EXAMPLE: Final = "--app myservice.app:manager"
CALLS_MAX: Final = 3
THREADS_END_WITHIN_S: Final = 1.0  # longest wait for threads, which may be the host's and stay
WHAT_FITS: Final = (
    "a PipelineManager, an Observer, an Insight, (session_factory, [pipelines]), or a function or"
    " an async context manager that gives one"
)


@asynccontextmanager
async def insight_of_app(
    found: Any, name: str, *, database: str | None = None
) -> AsyncIterator[Insight]:
    """Provide an `Insight` for an app, and close its engines afterwards.

    `found` is from `imported`, `name` its ``module:attribute``; `database` is the URL of another
    database than the app's, by default ``ROWLOCK_DATABASE``. Raises AppError if it is no app.
    """
    url = database or os.environ.get(DATABASE_VARIABLE)
    async with _threads_ended_behind_errors(), AsyncExitStack() as stack:
        insight = await _resolved(found, name, stack)
        if url:
            insight = insight.on(async_sessionmaker(_engine(url)))
        stack.push_async_callback(_dispose, insight)
        yield insight


@asynccontextmanager
async def _threads_ended_behind_errors() -> AsyncIterator[None]:
    """Behind an error, wait for the threads that began within.

    The thread of a driver whose connection failed says that it ends by way of the event loop; were
    that closed by then, a traceback of the thread's would stand before the error.
    """
    before = set(threading.enumerate())
    try:
        yield
    except Exception:
        begun = [one for one in threading.enumerate() if one not in before and one.daemon]
        until = monotonic() + THREADS_END_WITHIN_S
        for thread in begun:
            await asyncio.to_thread(thread.join, max(0.0, until - monotonic()))
        raise


def app_named(
    app: str | None, environment: Mapping[str, str], folder: Path
) -> tuple[str, Path, Path | None]:
    """Return ``module:attribute``, the folder of its module, and the ``pyproject.toml`` that names
    it.

    That is the nearest one, if neither `app` nor ``ROWLOCK_APP`` names an app. Raises AppError if
    nothing does, or a file of another user.
    """
    if app or environment.get(APP_VARIABLE):
        return app or environment[APP_VARIABLE], folder, None
    if (found := app_of_project(folder)) is not None:
        named, project = found
        _check_owner(project, named)
        return named, project.parent, project
    raise AppError(
        f"say where the pipelines are: {EXAMPLE}, or {APP_VARIABLE}=myservice.app:manager in the"
        ' environment, or app = "myservice.app:manager" below [tool.rowlock] in pyproject.toml'
    )


def _check_owner(project: Path, named: str) -> None:
    # A folder such as /tmp is everybody's: its file would have this user run another one's code.
    owners = {project.stat().st_uid, project.lstat().st_uid, project.parent.stat().st_uid}
    if hasattr(os, "geteuid") and owners != {os.geteuid()}:
        raise AppError(
            f"{project} names the app {shown(named)}, which is not imported: the file or its folder"
            f" is owned by another user; if you trust it, go there and say --app {shown(named)}"
        )


def imported(name: str, folder: Path) -> Any:
    """Return what ``module:attribute`` names; raises AppError if that cannot be imported."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise AppError(f"an app is module:attribute, such as {EXAMPLE}, not {name!r:.100}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(module_name)
    # A module that runs a program ends with an exit, whose code would be taken for an answer.
    except (Exception, SystemExit) as error:
        raise AppError(f"{module_name} cannot be imported: {describe(error)}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AppError(f"{module_name} has no {attribute}; an app is {EXAMPLE}") from None
    return found


async def _resolved(found: Any, name: str, stack: AsyncExitStack) -> Insight:
    for _ in range(CALLS_MAX):
        if isinstance(found, Insight):
            return found
        if isinstance(found, PipelineManager | Observer):
            return Insight.of(found)
        if isinstance(found, tuple) and len(found) == len(("session_factory", "pipelines")):
            return Insight(*found)
        if not (isinstance(found, AbstractAsyncContextManager) or callable(found)):
            break
        try:
            found = await _next(found, name, stack)
        except SystemExit as error:
            raise AppError(f"{name} ends the process: {describe(error)}") from error
    raise AppError(f"{name} is a {type(found).__name__}; an app is {WHAT_FITS}")


async def _next(found: Any, name: str, stack: AsyncExitStack) -> Any:
    if isinstance(found, AbstractAsyncContextManager):
        return await stack.enter_async_context(found)
    _check_arguments(found, name)
    given = found()
    given = await given if inspect.isawaitable(given) else given
    if given is None:
        raise AppError(f"{name} returns None; an app is {WHAT_FITS}: does it lack a return?")
    return given


def _check_arguments(found: Callable[..., Any], name: str) -> None:
    # Before the call: a TypeError out of it is the host's own.
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise AppError(f"{name} must need no arguments to be called: {describe(error)}") from error


def _engine(url: str) -> AsyncEngine:
    try:
        return create_async_engine(url)
    except (SQLAlchemyError, ImportError) as error:
        raise AppError(
            f"the database cannot be used: {describe(error)}; a URL names an async driver, such as"
            " the one of your app"
        ) from error


async def _dispose(insight: Insight) -> None:
    for engine in {engine_of(sessions, group[0]) for sessions, group in insight.by_database()}:
        await AsyncEngine(engine).dispose()
