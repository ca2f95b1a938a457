"""What an exception of host code says, and where it came from."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

__all__ = ["reason"]


def reason(error: BaseException) -> str:
    """Return what a failed assertion says; where it says nothing, and of any other exception, also the line that raised it."""
    text = str(error)
    if text and isinstance(error, AssertionError):
        return text
    frames = extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"
