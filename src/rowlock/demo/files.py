"""Finds the files of a folder, in a stable order and not without end."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

FILE_BYTES_MAX = 256 * 1024 * 1024
"""Larger files are left out: the demo ends within a minute."""
PASSED_OVER = frozenset({"__pycache__", "site-packages", "dist-packages"})
"""Folders that are not looked into: files that Python itself writes meanwhile, and other people's packages."""


def standard_library() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, limit: int) -> list[str]:
    """Return the paths of at most `limit` regular files below `folder`, relative to it.

    Links, files above `FILE_BYTES_MAX`, and names that are not UTF-8 (a database could not store them) are left out.
    """
    return list(islice(_walk(folder), limit))


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - PASSED_OVER)
        for name in sorted(names):
            path = Path(place, name)
            if _is_wanted(path):
                yield path.relative_to(folder).as_posix()


def _is_wanted(path: Path) -> bool:
    try:
        str(path).encode()
        return path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX
    except (OSError, UnicodeEncodeError):
        return False
