"""The app that a project's ``pyproject.toml`` names: ``app`` below ``[tool.rowlock]``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rowlock.errors import AppError, describe


def app_of_project(folder: Path) -> tuple[str, Path] | None:
    """Return ``module:attribute``, and the ``pyproject.toml`` that names it, if the nearest one
    does. Raises AppError if it cannot be read.
    """
    projects = (above / "pyproject.toml" for above in (folder, *folder.parents))
    project = next((one for one in projects if one.is_file()), None)
    if project is None:
        return None
    try:
        named: Any = tomllib.loads(project.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AppError(f"{project} cannot be read: {describe(error)}") from error
    for key in ("tool", "rowlock", "app"):
        named = named.get(key) if isinstance(named, dict) else None
    return (named, project) if isinstance(named, str) and named else None
