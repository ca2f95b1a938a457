"""schemas/: the JSON Schema of each document that a command prints, one file each.

Within a version keys are only added: a reader that ignores what it does not know goes on reading.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

DOCUMENTS: Final = {
    "explanation": "1",
    "status": "1",
    "rows": "1",
    "timeline": "1",
    "replicas": "1",
    "check": "2",
    "pipeline": "1",
    "claim_plan": "1",
    "rehearsal": "1",
    "action": "1",
    "error": "1",
}
"""What has a schema, and its version: of what says ``rowlock.check/2``, that is ``"check"``."""


def schema_of(document: str) -> dict[str, Any]:
    """Return the JSON Schema of a document.

    Args:
        document: one of `DOCUMENTS`, or what a document says under ``schema``.

    Raises:
        ValueError: there is no such document.
    """
    name, _, version = document.removeprefix("rowlock.").partition("/")
    if name not in DOCUMENTS or version not in ("", DOCUMENTS[name]):
        raise ValueError(f"no document is named {document!r:.100}; there are {DOCUMENTS}")
    text = files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
