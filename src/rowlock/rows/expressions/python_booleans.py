"""Finds ``and``, ``or``, ``not`` and ``if`` on SQL expressions in `ready`.

The trap this closes: Python asks an expression for its truth, and ``a == 'x' and b`` is
``a == 'x'`` without a word, since SQLAlchemy answers for ``==`` and ``!=`` (it must: columns are
keys of dicts), and a mapped attribute is true as any object is. Of ``>`` and the like it raises a
``TypeError`` itself.

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

from sqlalchemy.orm.attributes import QueryableAttribute
from sqlalchemy.sql.elements import BinaryExpression

# `ready` may build another pipeline, which asks its own `ready`.
_lock = threading.RLock()
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

    def answer_attribute(attribute: Any) -> bool:
        if threading.get_ident() == mine and _is_jump(sys._getframe(1)):
            noted.append(str(attribute))
        return True

    with _lock:
        # Any object is true: mapped attributes do not say anything else themselves.
        asks_attribute = vars(QueryableAttribute).get("__bool__")
        BinaryExpression.__bool__ = answer  # type: ignore[assignment, method-assign, unused-ignore]
        QueryableAttribute.__bool__ = answer_attribute  # type: ignore[attr-defined]
        try:
            yield noted
        finally:
            BinaryExpression.__bool__ = asks  # type: ignore[method-assign, unused-ignore]
            if asks_attribute is None:
                del QueryableAttribute.__bool__  # type: ignore[attr-defined]
            else:
                QueryableAttribute.__bool__ = asks_attribute  # type: ignore[attr-defined]


def _is_jump(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "sqlalchemy":
        return False
    code = frame.f_code.co_code
    operation, argument = dis.opname[code[frame.f_lasti]], code[frame.f_lasti + 1]
    if operation == "COMPARE_OP":
        return bool(argument & _ASKED_BY_COMPARISON)
    return any(jump in operation for jump in _JUMPS)
