"""``rowlock run FILE``: a program in which ``await`` may stand at the top, such as the code of a
page of the docs.

The prompt of ``python -m asyncio`` takes one statement at a time, and a class with an empty line in
it is two. A file, or what is pasted into standard input, is read as a whole.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import builtins
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType

DONE, MISUSED = 0, 2
"""Exit codes; an error of the program itself is its traceback, and 1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = "Run a Python program in which await may stand at the top."
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        help="without it: what is pasted, up to the end of input (Ctrl-D; Windows: Ctrl-Z, Enter)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the program to its end, and return the exit code."""
    file: Path | None = options.file
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        print(f"rowlock run: cannot read {file}: {error.strerror}", file=sys.stderr)
        return MISUSED
    folder = Path.cwd() if file is None else file.resolve().parent
    sys.path.insert(0, str(folder))
    run_text(text, "<pasted>" if file is None else str(file))
    return DONE


def run_text(text: str, name: str) -> None:
    """Run a program, which tracebacks call `name`, to its end.

    Raises:
        BaseException: whatever the program raises.
    """
    code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    # Mapped classes look up their annotations in the module that they say they are of.
    page = sys.modules["__main__"] = ModuleType("__main__")
    vars(page)["__builtins__"] = builtins
    result = FunctionType(code, vars(page))()
    if inspect.iscoroutine(result):
        asyncio.run(result)
