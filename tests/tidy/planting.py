"""The script of the planted bugs, run in a copy of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LISTS = Path("tests", "planted")


def check_of(root: Path) -> tuple[int, str]:
    """Return the exit code of the check of a tree, and what it says."""
    return run_planted(root, "--check")


def run_planted(root: Path, *options: str) -> tuple[int, str]:
    """Return the exit code of the script of a tree, and what it says."""
    command = [sys.executable, str(root / LISTS), *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    return run.returncode, run.stdout + run.stderr


def replace(path: Path, old: str, new: str) -> None:
    """Change a file of the copy."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
