"""The application of a reader of the README: what the README's block imports from `my_app`."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """The reader's declarative base."""


async def create_disk(*, idempotency_key: str) -> str:
    return f"disk-{idempotency_key}"
