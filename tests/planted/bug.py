"""One planted bug: a guard, what it looks like without it, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One guard.

    Attributes:
        name: what is wrong without it.
        file: below ``src/rowlock``.
        guard: stands in the file exactly once.
        without: what stands there instead.
        tests: pytest's names of the tests that find it.
    """

    name: str
    file: str
    guard: str
    without: str
    tests: tuple[str, ...]

    def planted_in(self, text: str) -> str:
        """Return `text` of its file with the bug in it."""
        return text.replace(self.guard, self.without)
