"""The texts of ``payloads.txt``, for whoever shows what stands in a row."""

from __future__ import annotations

import ast
from pathlib import Path


def payloads() -> list[str]:
    """Return them all."""
    lines = (Path(__file__).with_suffix(".txt")).read_text(encoding="utf-8").splitlines()
    return [str(ast.literal_eval(line)) for line in lines if line and not line.startswith("#")]
