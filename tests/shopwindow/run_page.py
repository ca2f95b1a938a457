"""Runs the program of a page: ``python run_page.py PROGRAM NAME``, in the folder where its files
are.

The one idea: as in ``python -m asyncio``, ``await`` may stand anywhere. `NAME` is what tracebacks
call the program.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType


def main(program: Path, name: str) -> None:
    """Run the program to its end."""
    sys.path.insert(0, str(Path.cwd()))
    text = program.read_text(encoding="utf-8")
    code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    # Mapped classes look up their annotations in the module that they say they are of.
    page = sys.modules["__main__"] = ModuleType("__main__")
    vars(page)["__builtins__"] = builtins
    result = FunctionType(code, vars(page))()
    if inspect.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
