"""A copy of the tree, in which something can be wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .reading import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of all that the check reads."""
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path
