"""The mutants that mutmut wrote: their names, what each changes, and whether that is more than a
text.
"""

from __future__ import annotations

import ast
import difflib
import json
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

NOT_TRIED = ("postgresql", "notifications", "notifier", "wool", "wool_line")
"""Modules that do nothing on SQLite, or whose tests start processes that coverage waits for
without an end.
"""
MODULES_MAX = 8
"""So many modules are kept parsed; with all their mutants they are large."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def names_of(folder: Path, modules: list[str]) -> list[str]:
    """Return the names of all mutants of `modules` (of all if none is named) that are to be
    tried, in a fixed order.
    """
    found: list[str] = []
    for path in sorted((folder / "mutants" / "src").rglob("*.py.meta")):
        module = path.name.split(".")[0]
        if module not in NOT_TRIED and (not modules or module in modules):
            found += json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def module_of(name: str) -> tuple[list[str], str]:
    """Return the parts of the module's name, and mutmut's name of the function with its number."""
    *module, function = name.split(".")
    return module, function


def function_of(tree: ast.Module, name: str) -> FunctionNode:
    """Return the function that a mutant changes, in the source as we wrote it."""
    mangled = module_of(name)[1].rpartition("__mutmut_")[0]
    # mutmut writes x_function, and xǁClassǁmethod.
    *scope, called = (
        mangled.removeprefix("xǁ").split("ǁ")
        if mangled.startswith("xǁ")
        else [mangled.removeprefix("x_")]
    )
    within: ast.AST = (
        next(node for node in tree.body if getattr(node, "name", None) == scope[0])
        if scope
        else tree
    )
    return next(
        node for node in ast.walk(within) if isinstance(node, FunctionNode) and node.name == called
    )


def shown(name: str, folder: Path) -> str:
    """Return the line that a mutant changes, and what it makes of it."""
    original, mutant = (ast.unparse(body).splitlines() for body in _bodies(name, folder))
    lines = difflib.unified_diff(original, mutant, lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def is_of_a_text(name: str, folder: Path) -> bool:
    """Return whether a mutant changes nothing but the wording of an error or of a line of the
    log: no test pins those.
    """
    original, mutant = (ast.dump(_WithoutTexts().visit(body)) for body in _bodies(name, folder))
    return original == mutant


class _WithoutTexts(ast.NodeTransformer):
    """Blanks the texts of errors and of the log."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return _blanked(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        """Blank what a transaction is for: it is said in errors and the log."""
        return _blanked(node) if node.arg == "purpose" else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_logging = (
            isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "logger"
        )
        return _blanked(node) if is_logging else self.generic_visit(node)


def _blanked(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            inner.value = ""
    return node


def _bodies(name: str, folder: Path) -> tuple[FunctionNode, FunctionNode]:
    """Return the function that a mutant changes as it was, and as it is then, both under one
    name.
    """
    module, function = module_of(name)
    stem = function.rpartition("__mutmut_")[0]
    functions = _functions(folder / "mutants" / "src" / Path(*module))
    return _renamed(functions[f"{stem}__mutmut_orig"]), _renamed(functions[function])


@lru_cache(MODULES_MAX)
def _functions(path: Path) -> dict[str, FunctionNode]:
    tree = ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(
            encoding="utf-8"
        )
    )
    return {node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)}


def _renamed(function: FunctionNode) -> FunctionNode:
    function = deepcopy(function)
    function.name = "mutated"
    return function
