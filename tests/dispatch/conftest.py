"""What several files of these tests share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from .renders import Base
from .wool_farm import farm


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes find the handlers by the name that they have here, however pytest was
    started.
    """
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def namespace() -> Iterator[str]:
    """Where two workers of wool, which are slow to make, are told of, of one task each; no test may
    break them, or leave them busy.
    """
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=2):
        yield name


@pytest.fixture(scope="session")
def rowlock_metadata() -> MetaData:
    return Base.metadata
