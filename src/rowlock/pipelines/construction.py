"""What is found about a host's pipeline class while it is built: hooks that are missing or of a
wrong kind, misspelt names, Python's ``and`` between SQL expressions, settings that come too late.

The one idea: a mistake in a class body is reported where the class is used first, as one
`ConfigurationError` with what to write instead. A name is taken for a misspelt one only where
its value could be meant for it, too: a `models` that is a dict is the host's own, and a number
called `worker_num` is not. A name that was refused wrongly could not be used at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from rowlock.errors import ConfigurationError, ModelError, SettingsError
from rowlock.pipelines.hooks import ready_condition
from rowlock.pipelines.schedules import Periodic
from rowlock.pipelines.settings import SETTING_NAMES, PipelineSettings
from rowlock.rows.expressions import noted_booleans
from rowlock.rows.leased_table import LeasedTable
from rowlock.schedules import Schedule

_NAMES_NONE = re.compile(r"\bNone(Type)?\b|\bOptional\b")
_PASSED_ON = frozenset({Annotated, Awaitable, Coroutine, Union, UnionType})
"""What is looked into: of each, only what a caller gets."""


def may_return_none(function: Any) -> bool:
    """Whether the annotation of `function` allows None, as text if it cannot be resolved."""
    inner: Callable[..., Any] = inspect.unwrap(getattr(function, "__func__", function))
    annotations = getattr(inner, "__annotations__", None) or {}
    if "return" not in annotations:
        return False
    try:
        return _has_none(get_type_hints(inner, include_extras=True)["return"])
    # Names that are there for type checkers alone, or the host's own classes.
    except Exception:  # noqa: BLE001
        return bool(_NAMES_NONE.search(str(annotations["return"])))


def _has_none(kind: Any) -> bool:
    if kind in (Any, NoneType, object):
        return True
    origin = get_origin(kind)
    if origin not in _PASSED_ON:
        return False
    parts = get_args(kind)
    if origin is Annotated:
        parts = parts[:1]
    elif origin is Coroutine:
        parts = parts[2:]
    return any(map(_has_none, parts))


ALIKE = 0.9
"""Names this much alike, by difflib's ratio, are taken for one that was misspelt."""
OF_OURS = "rowlock."


HOOKS = ("on_refused", "on_stale", "process", "ready", "schedule_of")
DECLARATIONS: Mapping[str, tuple[type, ...]] = {
    "intent": (list, set, tuple),
    "locks": (list, set, tuple),
    "model": (type,),
    "park_on": (dict, list, tuple, type),
    "periodic": (list, tuple, Periodic),
    "retry_on": (dict, list, tuple, type),
    "schedule": (Schedule,),
}
"""What a host sets on its class beside those, each with the types that it can have."""
READ = (*HOOKS, *SETTING_NAMES, *DECLARATIONS)


def _may_be_meant(name: str, value: object) -> bool:
    """Whether `value` could be that of `name`."""
    if name in DECLARATIONS:
        return isinstance(value, DECLARATIONS[name])
    if name in HOOKS:
        return callable(value) or isinstance(value, classmethod | property | staticmethod)
    return isinstance(value, float | int | list | NoneType | str | timedelta | tuple)


def check_names(pipeline: object, base: type) -> None:
    """Refuse attributes of a host's classes that are named nearly as what `base` reads."""
    for one in type(pipeline).__mro__:
        if issubclass(one, base) and not one.__module__.startswith(OF_OURS):
            _check_each(pipeline, vars(one), base, known=READ)


def _check_each(
    pipeline: object, given: Mapping[str, object], base: type, *, known: Collection[str]
) -> None:
    name = type(pipeline).__name__
    for attribute, value in given.items():
        if attribute.startswith("_") or attribute in known or hasattr(base, attribute):
            continue
        meant = nearest(attribute, known)
        if meant is None or not _may_be_meant(meant, value):
            continue
        text = (
            f"{name}.{attribute} is nothing that rowlock reads; {meant} is meant, or another name,"
            " that is less like it"
        )
        if meant in SETTING_NAMES:
            raise SettingsError(text, pipeline=name, settings=(meant,))
        raise ConfigurationError(text)


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Return which of the `known` names is meant by `name`; None if it is none of them."""
    names = sorted(known)
    words = _words(name)
    if len(words) > 1 and (same := [one for one in names if _words(one) == words]):
        return same[0]
    return next(iter(get_close_matches(name, names, n=1, cutoff=alike)), None)


def _words(name: str) -> list[str]:
    return sorted(word.removesuffix("s") for word in name.lower().split("_") if word)


def settable(pipeline: object) -> dict[str, object]:
    """Return what an instance has set of all that is read while it is built."""
    return {name: vars(pipeline).get(name) for name in (*SETTING_NAMES, *DECLARATIONS)}


RESERVED_NAMES: Final = frozenset(
    {
        *("build_run", "declared_locks", "drain", "expected_errors", "health", "hint"),
        *("intent_columns", "leased", "name", "run", "schedules", "settings", "shutdown", "start"),
        *("state", "statistics"),
    }
)
"""Names that a subclass may not use for something of its own."""


def check_process(name: str, process: Callable[..., Any], *, is_base: bool) -> None:
    """Refuse a `process` that is missing, yields, or takes no item."""
    if is_base:
        raise ConfigurationError(f"{name} must say what to do with a row: override process(item)")
    if not callable(process):
        raise ConfigurationError(f"{name}.process must be a function, not {process!r:.100}")
    if inspect.isasyncgenfunction(process) or inspect.isgeneratorfunction(process):
        raise ConfigurationError(f"{name}.process must return an outcome, not yield")
    signature = inspect.signature(process)
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{name}.process must take one argument, the item: def process(self, item), not"
            f" {signature}"
        ) from None


def check_ready(name: str, leased: LeasedTable, ready: Callable[[], Any]) -> None:
    """Refuse a `ready` that gives no SQL expression, or not the one that is written there."""
    with noted_booleans() as noted:
        try:
            ready_condition(name, leased, ready)
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
    """Refuse a pipeline whose ``__init__`` has not called `Pipeline`'s, or has undone it."""
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
        if type(self).__init__ is not checked:
            return
        check_is_built(self)
        _check_each(self, vars(self), base, known=SETTING_NAMES)
        as_read = self._as_read
        late = [name for name, value in settable(self).items() if as_read[name] is not value]
        if late:
            raise ConfigurationError(
                f"{type(self).__name__}.__init__ sets self.{late[0]} after super().__init__(),"
                " which has read it: set it before, or pass it to super().__init__()"
            )

    cls.__init__ = checked
