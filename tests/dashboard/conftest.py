"""Limits that a starved machine does not meet; who tests a limit sets it back."""

from __future__ import annotations

import pytest

from .shop_window import be_generous


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a page, a part of it and an answer of the host a minute each."""
    be_generous(monkeypatch)
