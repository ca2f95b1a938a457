"""How much tests draw, crash and repeat: enough for each change, and all of it before a release
(``nox -s long``).
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def at_length(usual: T, long: T) -> T:
    """Return `long` where ``ROWLOCK_AT_LENGTH`` is set, and else `usual`."""
    return long if "ROWLOCK_AT_LENGTH" in os.environ else usual
