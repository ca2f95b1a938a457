"""The examples as modules, for tests that take their pipelines apart."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from .pages import ROOT

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))  # where examples find their modules


@cache
def example(number: int) -> ModuleType:
    """Return the example of that number, loaded once: its mapped classes must not be declared
    twice.
    """
    (path,) = EXAMPLES.glob(f"{number:02}_*.py")
    name = f"example_{number:02}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def part(name: str) -> ModuleType:
    """Return a module that examples import, such as ``rendering.tables``."""
    return import_module(name)
