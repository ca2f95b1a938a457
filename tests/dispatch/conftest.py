"""What several files of these tests share because it is slow to make: workers of wool."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from .wool_farm import farm


@pytest.fixture(scope="session")
def namespace() -> Iterator[str]:
    """Where two workers of wool are told of, of one task each; no test may break them, or leave
    them busy.
    """
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=2):
        yield name
