"""Finds ``and``, ``or``, ``not`` and ``if`` on SQL expressions in `ready`.

The trap this closes: Python asks an expression for its truth, and ``a == 'x' and b`` is
``a == 'x'`` without a word, since SQLAlchemy answers for ``==`` and ``!=`` (it must: columns are
keys of dicts). Of ``>`` and the like it raises a ``TypeError`` itself.

Why it is safe to replace a method of SQLAlchemy's here: it is done while a pipeline is built, for
one call of `ready`, under a lock; what is asked goes on to the method that was there, whoever asks;
and only a jump of Python's in code that is not SQLAlchemy's is noted, and only in the thread that
builds the pipeline. Checked with SQLAlchemy 2.1 and CPython 3.11 to 3.13;
where another one names its jumps otherwise, nothing is noted, and the mistake is silent as before.
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
_ASKED_BY_COMPARISON = 16 if sys.version_info >= (3, 13) else 0
"""The bit of a comparison's argument by which it asks for the truth itself."""


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
    code = frame.f_code.co_code
    operation, argument = dis.opname[code[frame.f_lasti]], code[frame.f_lasti + 1]
    if operation == "COMPARE_OP":
        return bool(argument & _ASKED_BY_COMPARISON)
    return any(jump in operation for jump in _JUMPS)
