"""What a lock token says beside being one: which process made it, that its holder came back, and
how many died before it.

*Marks.* Each process draws a mark, anew in a child that was forked, and all tokens that it makes
end so. A row by itself says who has it, and no column is needed. On PostgreSQL the client draws the
first eight digits for each claim, so that the rows of a claim whose answer cannot be read are found
and released; the rest of the token is random for each row.

*Reservations.* A row that was reset keeps its owner: a reservation, which the pipelines of its
related rows respect. The next claim must not end that reservation before the related rows are
locked, or busy children would be claimed in between, every time. No column is left to say so; the
token itself can: a claim that comes back has a UUID of version 8, as random as any of version 4.

*Deaths.* A failure is written by its holder, which so proves that it lives; only a death leaves its
token behind. The claim that finds one hands out a token that counts one more: its variant digit is
``e``, which no random UUID has, and the two digits before the mark are the count. An outcome or a
release clears the token, and the count with it; a claim of a free row pays nothing.

Not here: who respects the reservation (``rows/eligibility.py``), deaths in SQL
(``dialects/postgresql/death_tokens.py``), and what becomes of a row that kills its holders
(``pipelines/processing/worker.py``).

Source: RFC 9562, section 5.8: version 8 is for what an application wants to say; section 4.1:
variants ``e`` and ``f`` are reserved.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Text, and_, cast, func
from sqlalchemy.orm import InstrumentedAttribute

VERSION_DIGIT_AT = 13
"""Where the version stands among the 32 digits of a UUID, counted from 1 as SQL does."""
VARIANT_DIGIT_AT = 17
"""Where the variant stands among the 32 digits of a UUID, counted from 1 as SQL does."""
COUNT_AT = 23
"""Where the two digits of the count stand."""
MARK_AT = 25
"""Where the mark begins, which is the rest of the token."""
MARK_BYTES = 4
"""How long the mark is."""
CLAIM_DIGITS = 8
"""How many digits at the start of a token are those of its claim."""
TOKEN_BYTES = 16
"""How long a token is."""
DEATHS_MAX = 255
"""Most deaths that are counted."""
COUNTED = "e"


class OwnMark:
    """The mark of this process.

    Attributes:
        octets: with which all tokens of the process end.
    """

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Have another one from now on."""
        self.octets = os.urandom(MARK_BYTES)

    @property
    def digits(self) -> str:
        """Eight hexadecimal ones."""
        return self.octets.hex()


OWN_MARK: Final = OwnMark()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OWN_MARK.draw)


def replica_mark() -> str:
    """Return the mark of this process: eight hexadecimal digits with which all its tokens end."""
    return OWN_MARK.digits


def mark_of(token: object) -> str:
    """Return the mark of the process that has made `token`."""
    return str(token).replace("-", "")[MARK_AT - 1 :]


def fresh_token() -> uuid.UUID:
    """Return a token that no holder has had."""
    random = os.urandom(TOKEN_BYTES - MARK_BYTES)
    return uuid.UUID(bytes=random + OWN_MARK.octets, version=4)


def reservation_token() -> uuid.UUID:
    """Return a fresh token of a holder that comes back."""
    digits = fresh_token().hex
    return uuid.UUID(digits[: VERSION_DIGIT_AT - 1] + "8" + digits[VERSION_DIGIT_AT:])


def is_reservation_token(token: Column[Any] | InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Whether `token` is that of a holder that came back; null if there is none."""
    digits = func.replace(cast(token, Text), "-", "")
    return func.substr(digits, VERSION_DIGIT_AT, 1) == "8"


def is_of_claim(token: Column[Any], digits: str) -> ColumnElement[bool]:
    """Whether `token` has the first digits and the mark of the claim that was given `digits`."""
    found = func.replace(cast(token, Text), "-", "")
    return and_(
        func.substr(found, 1, CLAIM_DIGITS) == digits[:CLAIM_DIGITS],
        func.substr(found, MARK_AT) == mark_of(digits),
    )


def keeps_reservation(token: object) -> bool:
    """Whether `token`, as it was read, is that of a holder that came back."""
    return str(token).replace("-", "")[VERSION_DIGIT_AT - 1 : VERSION_DIGIT_AT] == "8"


def deaths_of(token: object) -> int:
    """Return how many holders in a row have died before the one of `token`."""
    digits = str(token).replace("-", "")
    if digits[VARIANT_DIGIT_AT - 1 : VARIANT_DIGIT_AT] != COUNTED:
        return 0
    try:
        return int(digits[COUNT_AT - 1 : MARK_AT - 1], 16)
    except ValueError:
        # Of somebody's own making.
        return 0


def token_after(dead: object, token: uuid.UUID) -> uuid.UUID:
    """Return the fresh `token` with one death more than the token of the holder that is `dead`."""
    digits, deaths = token.hex, min(deaths_of(dead) + 1, DEATHS_MAX)
    marked = digits[: VARIANT_DIGIT_AT - 1] + COUNTED + digits[VARIANT_DIGIT_AT : COUNT_AT - 1]
    return uuid.UUID(f"{marked}{deaths:02x}{digits[MARK_AT - 1 :]}")
