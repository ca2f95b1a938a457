"""What is found about a host's pipeline class while it is built: misspelt names, hooks that are
missing or of a wrong kind, Python's ``and`` between SQL expressions.

The one idea: a mistake in a class body is said where the class is used first, as one
`ConfigurationError` that says what to write instead. Nothing here asks the database.

Not here: settings and their bounds (``settings.py``), columns (``rows/model_check.py``).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any

from rowlock.errors import ConfigurationError, ModelError, SettingsError
from rowlock.pipelines.host_code.hooks import Hooks, ready_condition
from rowlock.pipelines.settings import SETTING_NAMES
from rowlock.rows.expressions.python_booleans import noted_booleans
from rowlock.rows.leased_table import LeasedTable

ALIKE = 0.9
"""Names this much alike, by the ratio of difflib, are taken for one that was misspelt: more of
them would be names of the host's own.
"""
OF_OURS = "rowlock."
_SAYS_NONE = re.compile(r"\bNone(Type)?\b|\bOptional\b")


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Return which of the `known` names is meant by `name`; None if it is none of them."""
    names = sorted(known)
    words = _words(name)
    if len(words) > 1 and (same := [one for one in names if _words(one) == words]):
        return same[0]
    return next(iter(get_close_matches(name, names, n=1, cutoff=alike)), None)


def _words(name: str) -> list[str]:
    return sorted(word.removesuffix("s") for word in name.lower().split("_") if word)


def check_names(pipeline: object, base: type, *, kept: frozenset[str]) -> None:
    """Refuse attributes of a host's class that are named nearly as what `base` reads.

    Args:
        pipeline: an instance of a subclass of `base`.
        base: the class whose public names are known.
        kept: names of `base` that are not the host's to set.

    Raises:
        SettingsError: a setting is misspelt.
        ConfigurationError: a hook is.
    """
    known = {name for name in (*dir(base), "model") if not name.startswith("_")} - kept
    name = type(pipeline).__name__
    classes = type(pipeline).__mro__[: type(pipeline).__mro__.index(base)]
    for one in classes:
        if one.__module__.startswith(OF_OURS):
            continue
        for attribute in (*vars(one), *vars(one).get("__annotations__", ())):
            if attribute.startswith("_") or hasattr(base, attribute) or attribute in known:
                continue
            meant = nearest(attribute, known)
            if meant is None:
                continue
            text = (
                f"{name}.{attribute} is nothing that rowlock reads; {meant} is meant, or another"
                " name, that is less like it"
            )
            if meant in SETTING_NAMES:
                raise SettingsError(text, pipeline=name, settings=(meant,))
            raise ConfigurationError(text)


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


def did_you_mean(wanted: str, own: Iterable[str]) -> str:
    """Return a hint at the one of `own` names that may be a misspelt `wanted`; empty if none is."""
    found = get_close_matches(wanted, [one for one in own if one != wanted], n=1, cutoff=0.6)
    return f"; its {found[0]} is never called" if found else ""


def own_names(kind: type, base: type) -> list[str]:
    """Return what the classes of a host below `base` define."""
    classes = kind.__mro__[: kind.__mro__.index(base)]
    return [name for one in classes for name in vars(one) if not name.startswith("_")]


def may_return_none(process: Callable[..., Any]) -> bool:
    """Whether the annotation of `process` says that it may return None."""
    function = inspect.unwrap(getattr(process, "__func__", process))
    annotations = getattr(function, "__annotations__", {})
    if "return" not in annotations:
        return False
    returns = annotations["return"]
    return bool(_SAYS_NONE.search(returns if isinstance(returns, str) else repr(returns)))


def check_is_built(pipeline: object) -> None:
    """Refuse a pipeline whose own ``__init__`` has not called that of `Pipeline`.

    Raises:
        ConfigurationError: says what to write.
    """
    if not {"settings", "leased", "declared_locks"} <= vars(pipeline).keys():
        raise ConfigurationError(
            f"{type(pipeline).__name__}.__init__ must call super().__init__(**settings)"
        )


def check_after_init(cls: type[Any]) -> None:
    """Have instances of `cls` checked when the host's own ``__init__`` has returned."""
    init = cls.__init__

    @wraps(init)
    def checked(self: Any, *args: Any, **kw: Any) -> None:
        init(self, *args, **kw)
        if type(self) is cls:
            check_is_built(self)

    cls.__init__ = checked
