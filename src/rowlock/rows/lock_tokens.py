"""What a lock token says beside being one: that its holder came back, and how many died before it.

*Reservations.* A row that was reset keeps its owner: a reservation, which the pipelines of its
related rows respect. The next claim must not end that reservation before the related rows are
locked, or busy children would be claimed in between, every time. No column is left to say so; the
token itself can: a claim that comes back has a UUID of version 8, as random as any of version 4.

*Deaths.* A failure is written by its holder, which so proves that it lives; only a death leaves its
token behind. The claim that finds one hands out a token that counts one more: its variant digit is
``e``, which no random UUID has, and its last two digits are the count. An outcome or a release
clears the token, and the count with it; a claim of a free row pays nothing.

Not here: who respects the reservation (``rows/eligibility.py``), deaths in SQL
(``dialects/postgresql/death_tokens.py``), and what becomes of a row that kills its holders
(``pipelines/processing/worker.py``).

Source: RFC 9562, section 5.8: version 8 is for what an application wants to say; section 4.1:
variants ``e`` and ``f`` are reserved.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Column, ColumnElement, Text, cast, func
from sqlalchemy.orm import InstrumentedAttribute

VERSION_DIGIT_AT = 13
"""Where the version stands among the 32 digits of a UUID, counted from 1 as SQL does."""
VARIANT_DIGIT_AT = 17
"""Where the variant stands among the 32 digits of a UUID, counted from 1 as SQL does."""
COUNT_AT = 31
"""Where the two digits of the count stand."""
DEATHS_MAX = 255
"""Most deaths that are counted."""
COUNTED = "e"


def reservation_token() -> uuid.UUID:
    """Return a fresh token of a holder that comes back."""
    digits = uuid.uuid4().hex
    return uuid.UUID(digits[: VERSION_DIGIT_AT - 1] + "8" + digits[VERSION_DIGIT_AT:])


def is_reservation_token(token: Column[Any] | InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Whether `token` is that of a holder that came back; null if there is none."""
    digits = func.replace(cast(token, Text), "-", "")
    return func.substr(digits, VERSION_DIGIT_AT, 1) == "8"


def deaths_of(token: object) -> int:
    """Return how many holders in a row have died before the one of `token`."""
    digits = str(token).replace("-", "")
    if digits[VARIANT_DIGIT_AT - 1 : VARIANT_DIGIT_AT] != COUNTED:
        return 0
    try:
        return int(digits[COUNT_AT - 1 :], 16)
    except ValueError:
        # Of somebody's own making.
        return 0


def token_after(dead: object, token: uuid.UUID) -> uuid.UUID:
    """Return the fresh `token` with one death more than the token of the holder that is `dead`."""
    digits, deaths = token.hex, min(deaths_of(dead) + 1, DEATHS_MAX)
    marked = digits[: VARIANT_DIGIT_AT - 1] + COUNTED + digits[VARIANT_DIGIT_AT : COUNT_AT - 1]
    return uuid.UUID(f"{marked}{deaths:02x}")
