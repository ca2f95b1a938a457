"""Finds ``and``, ``or``, ``not`` and ``if`` on SQL expressions in `ready`.

The trap this closes: Python asks an expression for its truth, and ``a == 'x' and b`` is
``a == 'x'`` without a word, since SQLAlchemy answers for ``==`` and ``!=`` (it must: columns are
keys of dicts). Of ``>`` and the like it raises a ``TypeError`` itself.

Why it is safe to replace a method of SQLAlchemy's here: it is done while a pipeline is built, for
one call of `ready`, under a lock; what is asked goes on to the method that was there, whoever asks;
and only a jump of Python's in code that is not SQLAlchemy's is noted, and only in the thread that
builds the pipeline. Checked with SQLAlchemy 2.0 and 2.1, and CPython 3.11 to 3.14.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sqlalchemy.sql.elements import BinaryExpression

_lock = threading.Lock()
_JUMPS = ("JUMP_IF", "POP_JUMP", "TO_BOOL", "UNARY_NOT")


@contextmanager
def noted_booleans() -> Iterator[list[str]]:
    """Note each expression that Python's own operators ask for its truth, until the block ends."""
    noted: list[str] = []
    asks: Any = BinaryExpression.__bool__
    mine = threading.get_ident()

    def answer(expression: Any) -> Any:
        if threading.get_ident() == mine and _is_jump(sys._getframe(1)):
            noted.append(str(expression))
        return asks(expression)

    with _lock:
        BinaryExpression.__bool__ = answer  # type: ignore[assignment, method-assign, unused-ignore]
        try:
            yield noted
        finally:
            BinaryExpression.__bool__ = asks  # type: ignore[method-assign, unused-ignore]


def _is_jump(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "sqlalchemy":
        return False
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return any(jump in operation for jump in _JUMPS)
