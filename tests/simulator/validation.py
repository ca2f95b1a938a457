"""What a scenario may say of itself: slips are told before the first run, and not as a promise that
was broken.

Not here: what its pipelines and its services do.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import inspect as inspect_model
from sqlalchemy.orm import Mapper

from .faults.fault_kinds import Fault
from .scenario import Scenario

__all__ = ["check_scenario", "check_services"]


def check_scenario(scenario: Scenario, models: Collection[type]) -> None:
    """Refuse what a scenario cannot mean.

    Raises:
        TypeError: says which attribute, and what it takes.
    """
    name = type(scenario).__name__
    for method in ("check", "always"):
        if inspect.iscoroutinefunction(getattr(scenario, method)):
            raise TypeError(
                f"{name}.{method} is a plain `def`: it looks at world.read(), which takes no time"
            )
    for number, least in (("replicas_num", 1), ("faults_num_max", 0), ("rounds_max", 1)):
        value = getattr(scenario, number)
        if not isinstance(value, int) or value < least:
            raise TypeError(f"{name}.{number} is a whole number from {least} on, not {value!r}")
    if not isinstance(scenario.settle_within, timedelta | None):
        raise TypeError(
            f"{name}.settle_within is a timedelta or None, not {scenario.settle_within!r}"
        )
    _check_faults(name, scenario)
    _check_columns(name, scenario, models)


def check_services(name: str, services: Collection[object]) -> None:
    """Refuse what is no coroutine function: it would never be run.

    Raises:
        TypeError: says what `services` returns.
    """
    for service in services:
        if not inspect.iscoroutinefunction(service) and not inspect.iscoroutinefunction(
            # Asked for what it is.
            getattr(service, "func", getattr(service, "__call__", None))  # noqa: B004
        ):
            if inspect.iscoroutine(service):
                service.close()
            raise TypeError(
                f"{name}.services() returns coroutine functions, as in [self.buy], not {service!r}"
            )


def _check_faults(name: str, scenario: Scenario) -> None:
    faults: object = scenario.faults
    if isinstance(faults, str) or not isinstance(faults, Collection):
        raise TypeError(f"{name}.faults is a list, such as [Fault.KILL], not {faults!r}")
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(
                f"{name}.faults: {fault!r} is no Fault; write Fault.KILL, for one, or choose from"
                f" {list(Fault)}"
            )


def _check_columns(name: str, scenario: Scenario, models: Collection[type]) -> None:
    for model, columns in scenario.watched.items():
        if model not in models:
            raise TypeError(
                f"{name}.watched: no pipeline leases {model!r}; name it in {name}.models, too"
            )
        mapper: Mapper[Any] = inspect_model(model)
        there = mapper.column_attrs.keys()
        for column in [columns] if isinstance(columns, str) else columns:
            if column not in there:
                raise TypeError(f"{name}.watched: {model.__name__} has no column {column!r}")
        if isinstance(columns, str):
            raise TypeError(
                f"{name}.watched: the columns of {model.__name__} are a list: [{columns!r}]"
            )
    for column in scenario.services_own:
        if not any(column in watched for watched in scenario.watched.values()):
            raise TypeError(
                f"{name}.services_own: {column!r} is not watched; name it in {name}.watched, too"
            )
