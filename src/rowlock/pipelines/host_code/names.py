"""Which name of rowlock's a host has misspelt.

The one idea: a name is taken for a misspelt one only where its value could be meant for it, too: a
`models` that is a dict is the host's own, and a number called `worker_num` is not. A name that was
refused wrongly could not be used at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from types import NoneType
from typing import Any

from rowlock.errors import ConfigurationError, SettingsError
from rowlock.pipelines.host_code.row_schedules import Periodic
from rowlock.pipelines.settings import SETTING_NAMES
from rowlock.schedules import Schedule

ALIKE = 0.9
"""Names this much alike, by the ratio of difflib, are taken for one that was misspelt: more of
them would be names of the host's own.
"""
OF_OURS = "rowlock."


def _is_setting(value: object) -> bool:
    return isinstance(value, float | int | list | NoneType | str | timedelta | tuple)


def _is_function(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod | property | staticmethod)


def _is_list(value: object) -> bool:
    return isinstance(value, list | set | tuple)


def _is_rule_of_errors(value: object) -> bool:
    return isinstance(value, dict | list | tuple | type)


def _is_periodic(value: object) -> bool:
    rows = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(row, Periodic) for row in rows)


HOOKS = ("on_refused", "on_stale", "process", "ready", "schedule_of")
MEANT: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(SETTING_NAMES, _is_setting),
    **dict.fromkeys(HOOKS, _is_function),
    "intent": _is_list,
    "locks": _is_list,
    "model": lambda value: isinstance(value, type),
    "park_on": _is_rule_of_errors,
    "periodic": _is_periodic,
    "retry_on": _is_rule_of_errors,
    "schedule": lambda value: isinstance(value, Schedule) and not isinstance(value, type),
}
"""What a host sets on its class, each with what its value is like."""


def check_names(pipeline: object, base: type) -> None:
    """Refuse attributes of a host's classes that are named nearly as what `base` reads.

    Args:
        pipeline: an instance of a subclass of `base`.
        base: whose subclasses are looked at; what they get from others is not theirs to rename.

    Raises:
        SettingsError: a setting is misspelt.
        ConfigurationError: a hook is.
    """
    name = type(pipeline).__name__
    for one in type(pipeline).__mro__:
        if issubclass(one, base) and not one.__module__.startswith(OF_OURS):
            _check_each(name, vars(one), base, known=MEANT)


def check_own_settings(pipeline: object, base: type) -> None:
    """Refuse attributes that an instance has set, and that are named nearly as a setting.

    Raises:
        SettingsError: says which is meant.
    """
    settings = {name: MEANT[name] for name in SETTING_NAMES}
    _check_each(type(pipeline).__name__, vars(pipeline), base, known=settings)


def _check_each(
    name: str,
    given: Mapping[str, object],
    base: type,
    *,
    known: Mapping[str, Callable[[object], bool]],
) -> None:
    for attribute, value in given.items():
        if attribute.startswith("_") or attribute in known or hasattr(base, attribute):
            continue
        meant = nearest(attribute, known)
        if meant is None or not known[meant](value):
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


def did_you_mean(wanted: str, own: Iterable[str]) -> str:
    """Return a hint at the one of `own` names that may be a misspelt `wanted`; empty if none is."""
    found = get_close_matches(wanted, [one for one in own if one != wanted], n=1, cutoff=0.6)
    return f"; its {found[0]} is never called" if found else ""


def settable(pipeline: object) -> dict[str, object]:
    """Return what an instance has set of all that is read while it is built."""
    return {name: vars(pipeline).get(name) for name in MEANT if name not in HOOKS}


def own_names(kind: type, base: type) -> list[str]:
    """Return what the classes of a host below `base` define."""
    classes: tuple[Any, ...] = kind.__mro__[: kind.__mro__.index(base)]
    return [name for one in classes for name in vars(one) if not name.startswith("_")]
