"""All references, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .ledger import balances
from .queries import QUERIES
from .reference import Reference
from .taxi import zone_hours
from .words import word_counts

DECLARED: Final[dict[str, Callable[..., Reference]]] = {
    **QUERIES,
    "taxi": zone_hours,
    "words": word_counts,
    "ledger": balances,
}
