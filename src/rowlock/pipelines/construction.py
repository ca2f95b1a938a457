"""What is found about a host's pipeline class while it is built: hooks that are missing or of a
wrong kind, Python's ``and`` between SQL expressions, settings that come too late.

The one idea: a mistake in a class body is said where the class is used first, as one
`ConfigurationError` that says what to write instead. Nothing here asks the database.

Not here: misspelt names (``host_code/names.py``), settings and their bounds (``settings.py``),
columns (``rows/model_check.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

from rowlock.errors import ConfigurationError, ModelError
from rowlock.pipelines.host_code.hooks import Hooks, ready_condition
from rowlock.pipelines.host_code.names import check_own_settings, did_you_mean, settable
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.expressions.python_booleans import noted_booleans
from rowlock.rows.leased_table import LeasedTable

RESERVED_NAMES: Final = frozenset(
    {
        "build_run",
        "declared_locks",
        "drain",
        "expected_errors",
        "health",
        "hint",
        "intent_columns",
        "leased",
        "name",
        "run",
        "schedules",
        "settings",
        "shutdown",
        "start",
        "state",
        "statistics",
    }
)
"""Names that a subclass may not use for something of its own."""


def check_process(
    name: str, process: Callable[..., Any], *, is_base: bool, own: Iterable[str]
) -> None:
    """Refuse a `process` that is missing, yields, or takes no item.

    Args:
        name: of the pipeline.
        process: the bound method.
        is_base: whether it is that of `Pipeline`, which does nothing.
        own: names that the host's classes define, among which a misspelt one may be.

    Raises:
        ConfigurationError: says what to write.
    """
    if is_base:
        raise ConfigurationError(
            f"{name} must say what to do with a row: override process(item)"
            f"{did_you_mean('process', own)}"
        )
    if not callable(process):
        raise ConfigurationError(f"{name}.process must be a function, not {process!r:.100}")
    if inspect.isasyncgenfunction(process) or inspect.isgeneratorfunction(process):
        raise ConfigurationError(f"{name}.process must return an outcome, not yield")
    try:
        signature = inspect.signature(process)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{name}.process must take one argument, the item: def process(self, item), not"
            f" {signature}"
        ) from None


def check_ready(name: str, leased: LeasedTable, hooks: Hooks[Any]) -> None:
    """Refuse a `ready` that gives no SQL expression, or not the one that is written there.

    Raises:
        ModelError: says what to write.
    """
    with noted_booleans() as noted:
        try:
            ready_condition(name, leased, hooks)
        except AttributeError as error:
            if isinstance(error.obj, type):
                raise ModelError(f"{name}.ready() fails: {error}", model=leased.name) from error
            raise ModelError(
                f"{name}.ready() cannot be asked yet ({error}): it is called once while"
                " the pipeline is built, so set what it needs before super().__init__()",
                model=leased.name,
            ) from error
        except (ModelError, TypeError):
            # What Python made of it is not what the host has written.
            if not noted:
                raise
    if noted:
        raise ModelError(
            f"{name}.ready() asks Python whether an SQL expression is true ({noted[0]}):"
            " write & for `and`, | for `or`, ~ for `not`, each side in brackets, or and_(...)",
            model=leased.name,
        )


def check_is_built(pipeline: object) -> None:
    """Refuse a pipeline whose own ``__init__`` has not called that of `Pipeline`, or has put
    something else where rowlock keeps its own.

    Raises:
        ConfigurationError: says what to write.
    """
    name, own = type(pipeline).__name__, vars(pipeline)
    if not {"settings", "leased", "declared_locks"} <= own.keys():
        raise ConfigurationError(f"{name}.__init__ must call super().__init__(**settings)")
    for kept, kind in (("settings", PipelineSettings), ("leased", LeasedTable)):
        if not isinstance(own[kept], kind):
            raise ConfigurationError(
                f"{name}.__init__ sets self.{kept}, where rowlock keeps its own; give it another"
                " name"
            )


def check_after_init(cls: type[Any], base: type) -> None:
    """Have instances of `cls` checked when the host's own ``__init__`` has returned."""
    init = cls.__init__

    @wraps(init)
    def checked(self: Any, *args: Any, **kw: Any) -> None:
        init(self, *args, **kw)
        if type(self).__init__ is checked:
            check_is_built(self)
            check_own_settings(self, base)
            _check_not_too_late(self)

    cls.__init__ = checked


def _check_not_too_late(pipeline: Any) -> None:
    as_read = vars(pipeline)["_as_read"]
    late = [name for name, value in settable(pipeline).items() if as_read[name] is not value]
    if late:
        raise ConfigurationError(
            f"{type(pipeline).__name__}.__init__ sets self.{late[0]} after super().__init__(),"
            " which has read it: set it before, or pass it to super().__init__()"
        )
