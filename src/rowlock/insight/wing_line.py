"""What a flow or a graph says of itself, in one line. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WingLine:
    """What a flow or a graph has to say of itself.

    Attributes:
        kind: ``flow`` or ``graph``.
        answer: the name of the flow, or how many values are inside the graph.
        detail: the rest.
    """

    kind: str
    answer: str
    detail: str

    @property
    def text(self) -> str:
        """The whole in one line."""
        if self.kind == "flow":
            return f"flow {self.answer}: {self.detail}"
        return f"{self.kind}: {self.answer} {self.detail}"
