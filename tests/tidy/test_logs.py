"""``logs.py`` is the only file that logs.

So no log call raises into an actor that holds a lease, and no field of ours meets one of the
host's. Setting a level is free.
"""

from __future__ import annotations

import ast

import pytest

from .reading import Source, dotted, imports, package, planted

LOGS = "src/rowlock/logs.py"
LOGGERS = frozenset({"getLogger", "Logger", "LoggerAdapter", "getLoggerClass"})
CALLS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"}
)
OF_LEVELS = frozenset({"level", "setLevel"})


def loggers_astray(tree: list[Source]) -> list[str]:
    """Find places that log past ``logs.py``, or get what they could do so with."""
    found = []
    for source in (source for source in tree if source.path != LOGS):
        for target, line in imports(source):
            origin, _, name = target.rpartition(".")
            if origin == "logging" and name in LOGGERS | CALLS:
                found.append(source.finding(line, f"{target}: only logs.py logs"))
        free = {id(node.value.func) for node in ast.walk(source.tree) if is_of_a_level(node)}
        asking = (
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and logs_past(node)
        )
        found.extend(
            source.finding(node, f"{dotted(node)}: only logs.py logs")
            for node in asking
            if id(node) not in free
        )
    return found


def logs_past(node: ast.Attribute) -> bool:
    """Whether the attribute is a logger of the standard library, or a call of its root logger."""
    return dotted(node.value) == "logging" and node.attr in LOGGERS | CALLS


def is_of_a_level(node: ast.AST) -> bool:
    """Whether a logger is asked for to see or set its level."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in OF_LEVELS
        and isinstance(node.value, ast.Call)
    )


def test_only_logs_logs() -> None:
    """A handler of the host that raises would end an actor, and leave a row leased."""
    assert loggers_astray(package()) == []


@pytest.mark.parametrize(
    "text",
    [
        "logger = logging.getLogger(__name__)",
        "from logging import getLogger",
        "from logging import getLogger as get",
        "def f(): logging.getLogger('rowlock').warning('a row')",
        "get = logging.getLogger",
        "logging.warning('a row')",
        "from logging import warning",
        "logging.LoggerAdapter(logger)",
    ],
)
def test_planted_logger(text: str) -> None:
    """The law above would pass whatever logs."""
    assert len(loggers_astray(planted(text))) == 1
