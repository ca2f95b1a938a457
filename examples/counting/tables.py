"""The tables of the program."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """All tables of the program; those of the streams join them."""
