"""Reservation tokens: they say that their holder came back for locks it could not get.

A row that was reset keeps its owner: a reservation, which the pipelines of its related rows
respect. The next claim must not end that reservation before the related rows are locked, or busy
children would be claimed in between, every time. No column is left to say so; the token itself can:
a claim that comes back has a UUID of version 8, as random as any of version 4.

Not here: who respects the reservation (``rows/eligibility.py``).

Source: RFC 9562, section 5.8: version 8 is for what an application wants to say.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Column, ColumnElement, Text, cast, func
from sqlalchemy.orm import InstrumentedAttribute

VERSION_DIGIT_AT = 13
"""Where the version stands among the 32 digits of a UUID, counted from 1 as SQL does."""


def reservation_token() -> uuid.UUID:
    """Return a fresh token of a holder that comes back."""
    digits = uuid.uuid4().hex
    return uuid.UUID(digits[: VERSION_DIGIT_AT - 1] + "8" + digits[VERSION_DIGIT_AT:])


def is_reservation_token(token: Column[Any] | InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Whether `token` is that of a holder that came back; null if there is none."""
    digits = func.replace(cast(token, Text), "-", "")
    return func.substr(digits, VERSION_DIGIT_AT, 1) == "8"
