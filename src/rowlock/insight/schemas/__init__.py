"""schemas/: the JSON Schema of each document that a command prints, one file each.

Within a version keys are only added: a reader that ignores what it does not know goes on reading.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

DOCUMENTS: Final = (
    "explanation",
    "status",
    "rows",
    "timeline",
    "replicas",
    "check",
    "pipeline",
    "claim_plan",
    "rehearsal",
    "action",
    "error",
)
"""What has a schema; ``"explanation"`` is that of documents which say ``rowlock.explanation/1``."""


def schema_of(document: str) -> dict[str, Any]:
    """Return the JSON Schema of a document.

    Args:
        document: one of `DOCUMENTS`, or what a document says under ``schema``.

    Raises:
        ValueError: there is no such document.
    """
    name = document.removeprefix("rowlock.").removesuffix("/1")
    if name not in DOCUMENTS:
        raise ValueError(f"no document is named {document!r:.100}; there are {DOCUMENTS}")
    text = files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
