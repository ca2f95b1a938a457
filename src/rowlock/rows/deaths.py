"""Deaths: how often in a row holders of a row have died over it, counted in the token itself.

A failure is written by its holder, which so proves that it lives; only a death leaves its token
behind. The claim that finds one hands out a token that counts one more: its variant digit is ``e``,
which no random UUID has, and its last two digits are the count. An outcome or a release clears the
token, and the count with it; no column is needed, and a claim of a free row pays nothing.

Not here: the same in SQL (``dialects/postgresql/death_tokens.py``), and what becomes of a row that
kills its holders (``pipelines/processing/worker.py``).

Source: RFC 9562, section 4.1: variants ``e`` and ``f`` are reserved.
"""

from __future__ import annotations

import uuid

VARIANT_DIGIT_AT = 17
"""Where the variant stands among the 32 digits of a UUID, counted from 1 as SQL does."""
COUNT_AT = 31
"""Where the two digits of the count stand."""
DEATHS_MAX = 255
"""Most deaths that are counted."""
COUNTED = "e"


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
