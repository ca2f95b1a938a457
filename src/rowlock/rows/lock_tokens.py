"""What a lock token encodes: the process that made it, whether its holder came back for a reserved
row, and how many holders died before it.

*Marks.* Each process draws a mark, anew in a child that was forked, and all tokens that it makes
end so. On PostgreSQL the client draws the first eight digits for each claim, so that the rows of a
claim whose answer cannot be read are found and released; the rest is random for each row.

*Reservations.* A row that was reset keeps its owner: a reservation, which the pipelines of its
related rows respect. The claim that comes back must not end it before these are locked, or busy
children would be claimed in between, every time: its token is a UUID of version 8, as random as any
of version 4.

*Deaths.* Only a death leaves its token behind. The claim that finds one hands out a token that
counts it: its variant digit is ``e`` or ``f``, which no random UUID has, and the four digits before
the mark are two counts. An outcome or a release clears the token, and the counts with it.

*Crowds.* Where a replica lost many rows at once, its end says nothing of one of them. So a token
also says, by its variant ``f``, that its holder had many rows in hand. `deaths_after` is the rule.

Source: RFC 9562, section 5.8: version 8 is for what an application wants to say; section 4.1:
variants ``e`` and ``f`` are reserved.
"""

from __future__ import annotations

import math
import os
import uuid
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, ColumnElement, Text, and_, cast, func
from sqlalchemy.orm import InstrumentedAttribute

# Places among the 32 digits of a UUID, counted from 1 as SQL does. The counts are of deaths in
# crowds, then of those held against the row.
VERSION_DIGIT_AT, VARIANT_DIGIT_AT, COUNTS_AT, MARK_AT = 13, 17, 21, 25
CLAIM_DIGITS = 8
"""How many digits at the start of a token are those of its claim."""
TOKEN_BYTES, MARK_BYTES = 16, 4
DEATHS_MAX = 255
"""Most deaths that are counted, of each kind."""
COUNTED, IN_CROWD = "e", "f"
_VARIANT_SHIFT, _COUNTS_SHIFT = 4 * (32 - VARIANT_DIGIT_AT), 4 * (33 - MARK_AT)
_ENCODED = 0xF << _VARIANT_SHIFT | 0xFFFF << _COUNTS_SHIFT
"""The bits of the variant and of both counts."""
_VERSION_SHIFT = 4 * (32 - VERSION_DIGIT_AT)
_RANDOM = ~(0xF << _VERSION_SHIFT | 0xC << _VARIANT_SHIFT)
"""The bits that are random in a token without deaths."""
FEW_MAX = 3
"""A replica that has so many rows in hand at most loses few."""


class Deaths(NamedTuple):
    """How many holders of a row have died in a row: `counted` ones are held against the row; those
    `in_crowds` are not, since their replicas lost many rows at once.
    """

    counted: int = 0
    in_crowds: int = 0

    def are_trying(self, max_deaths: int | None) -> bool:
        """Whether the row died so often in crowds that it is to be tried alone."""
        return max_deaths is not None and self.in_crowds >= max_deaths


class OwnMark:
    """The mark of this process: the `octets` with which all its tokens end."""

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.octets = os.urandom(MARK_BYTES)


OWN_MARK: Final = OwnMark()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OWN_MARK.draw)


def replica_mark() -> str:
    return OWN_MARK.octets.hex()


def mark_of(token: object) -> str:
    return str(token).replace("-", "")[MARK_AT - 1 :]


def fresh_token(*, is_reserved: bool = False, in_crowd: bool = False) -> uuid.UUID:
    """Return a new token; of a holder that comes back for its row, or has many rows in hand."""
    # By its bits: on SQLite the token of each row is made here.
    number = int.from_bytes(os.urandom(TOKEN_BYTES - MARK_BYTES) + OWN_MARK.octets) & _RANDOM
    number |= (8 if is_reserved else 4) << _VERSION_SHIFT | 0x8 << _VARIANT_SHIFT
    return uuid.UUID(int=number & ~_ENCODED | 0xF << _VARIANT_SHIFT if in_crowd else number)


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


def deaths_of(token: object) -> Deaths:
    digits = str(token).replace("-", "")
    if digits[VARIANT_DIGIT_AT - 1 : VARIANT_DIGIT_AT] not in (COUNTED, IN_CROWD):
        return Deaths()
    try:
        in_crowds, counted = bytes.fromhex(digits[COUNTS_AT - 1 : MARK_AT - 1])
    except ValueError:
        # Written by hand.
        return Deaths()
    return Deaths(counted, in_crowds)


def is_in_crowd(token: object) -> bool:
    return str(token).replace("-", "")[VARIANT_DIGIT_AT - 1 : VARIANT_DIGIT_AT] == IN_CROWD


def with_deaths(token: object, deaths: Deaths, *, in_crowd: bool) -> uuid.UUID:
    number = (token if isinstance(token, uuid.UUID) else uuid.UUID(str(token))).int
    variant = int(IN_CROWD if in_crowd else COUNTED, 16) << _VARIANT_SHIFT
    counts = min(deaths.in_crowds, DEATHS_MAX) << 8 | min(deaths.counted, DEATHS_MAX)
    return uuid.UUID(int=number & ~_ENCODED | variant | counts << _COUNTS_SHIFT)


def deaths_after(dead: object, *, lost: int, max_deaths: int | None) -> Deaths:
    """Return the deaths of a row after that of the holder of the token `dead`, whose replica has
    `lost` so many rows as far as is known.

    A death is held against the row, which is parked at `max_deaths`, if its replica lost few rows
    at once. But a row that kills its holders may always die in crowds: after `max_deaths` of those
    it is tried alone, and to die twice then is enough.
    """
    counted, in_crowds = deaths = deaths_of(dead)
    was_tried = deaths.are_trying(max_deaths) and not is_in_crowd(dead)
    if was_tried and max_deaths is not None:
        return Deaths(counted + math.ceil(max_deaths / 2), in_crowds)
    if is_in_crowd(dead) or lost > FEW_MAX:
        return Deaths(counted, in_crowds + 1)
    return Deaths(counted + 1, in_crowds)
