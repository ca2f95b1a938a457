"""A graph as a picture: for Mermaid, for Graphviz, and as text.

One box for each operator, with its lanes; a graph that has begun to run also shows what has passed
and how busy the lanes were, and its bottleneck stands out. Names are the host's, so they are
escaped: none of them can end its label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from rowlock.errors import shorten
from rowlock.graph.building.topology import Topology, node_of
from rowlock.graph.scheduling.statistics import OperatorStatistics, statistics_of
from rowlock.graph.stock.joins import ResizeProcessor

OPERATORS_MAX: Final = 500
"""How many operators a picture shows."""
NAME_CHARS_MAX: Final = 60
"""How much of a name it shows."""

_MERMAID_ENTITIES: Final = {
    "#": "#35;",
    '"': "#quot;",
    "&": "#amp;",
    "<": "#lt;",
    ">": "#gt;",
    "`": "#96;",
    "\\": "#92;",
    "$": "#36;",  # two of them begin a formula
    ":": "#58;",  # "fa:fa-car" is an icon
    "{": "#123;",  # "%%{" begins a directive, wherever it stands
    "}": "#125;",
}


class Box(NamedTuple):
    """One operator.

    Attributes:
        name: as it is, but short and on one line.
        lanes: how many nodes it has.
        figures: what has become of its values, as text; empty before a run, and of a joint.
        is_bottleneck: its lanes are busy most.
        is_joint: it only passes values from lanes to lanes.
    """

    name: str
    lanes: int
    figures: tuple[str, ...]
    is_bottleneck: bool
    is_joint: bool

    @property
    def title(self) -> str:
        """The name, with the number of lanes if there are several."""
        return f"{self.name} × {self.lanes}" if self.lanes > 1 else self.name


class Arrow(NamedTuple):
    """The edges from one operator to another: their numbers, and how many values have passed."""

    source: int
    target: int
    passed: int | None


class Picture(NamedTuple):
    """What is drawn; `left_out` operators are not."""

    boxes: list[Box]
    arrows: list[Arrow]
    left_out: int


def picture_of(graph: Topology) -> Picture:
    """Return what is to be drawn of a graph, as it is now."""
    has_begun = graph.started_at is not None
    statistics = statistics_of(graph)
    shown = statistics.operators[:OPERATORS_MAX]
    boxes = []
    for one in shown:
        is_joint = isinstance(graph.operators[one.name][0].processor, ResizeProcessor)
        boxes.append(
            Box(
                _one_line(one.name),
                one.lanes,
                _figures(one) if has_begun and not is_joint else (),
                has_begun and one.name == statistics.bottleneck,
                is_joint,
            )
        )
    numbers = {one.name: number for number, one in enumerate(shown)}
    arrows = list(_arrows(graph, numbers, has_begun=has_begun))
    return Picture(boxes, arrows, len(statistics.operators) - len(shown))


def _arrows(graph: Topology, numbers: dict[str, int], *, has_begun: bool) -> Iterator[Arrow]:
    passed: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        source, target = node_of(edge.source).operator, node_of(edge.target).operator
        if source in numbers and target in numbers:
            key = numbers[source], numbers[target]
            passed[key] = passed.get(key, 0) + edge.passed
    for (source_number, target_number), count in passed.items():
        yield Arrow(source_number, target_number, count if has_begun else None)


def _figures(one: OperatorStatistics) -> tuple[str, ...]:
    counts = [("failed", one.failed), ("dropped", one.dropped), ("held", one.held)]
    return (
        ", ".join([f"{one.calls} calls", *(f"{count} {what}" for what, count in counts if count)]),
        f"busy {one.busy:.0%}",
        f"starved {one.starved:.0%}, blocked {one.blocked:.0%}",
    )


def _one_line(name: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in name)
    return shorten(" ".join(printable.split()) or "?", chars_max=NAME_CHARS_MAX)


def mermaid(graph: Topology) -> str:
    """Return the graph as a flowchart for Mermaid."""
    picture = picture_of(graph)
    lines = ["flowchart LR"]
    for number, box in enumerate(picture.boxes):
        label = "<br/>".join(_mermaid_text(line) for line in (box.title, *box.figures))
        begin, end = ("(", ")") if box.is_joint else ("[", "]")
        lines.append(f'    n{number}{begin}"{label}"{end}')
    for source, target, passed in picture.arrows:
        label = "" if passed is None else f"|{passed}|"
        lines.append(f"    n{source} -->{label} n{target}")
    if picture.left_out:
        lines.append(f'    more["and {picture.left_out} more operators"]')
    hot = [f"n{number}" for number, box in enumerate(picture.boxes) if box.is_bottleneck]
    if hot:
        lines.append("    classDef bottleneck fill:#fde2c4,stroke:#c05000,stroke-width:3px")
        lines.append(f"    class {','.join(hot)} bottleneck")
    return "\n".join(lines)


def _mermaid_text(text: str) -> str:
    return "".join(_MERMAID_ENTITIES.get(char, char) for char in text)


def graphviz(graph: Topology) -> str:
    """Return the graph for ``dot`` of Graphviz."""
    picture = picture_of(graph)
    lines = [f"digraph {_quoted(_one_line(graph.name))} {{", "    rankdir=LR; node [shape=box];"]
    for number, box in enumerate(picture.boxes):
        options: dict[str, Any] = {"label": "\n".join((box.title, *box.figures))}
        if box.is_joint:
            options["shape"] = "ellipse"
        if box.is_bottleneck:
            options |= {"style": "filled", "fillcolor": "#fde2c4", "penwidth": "3"}
        texts = ", ".join(f"{name}={_quoted(value)}" for name, value in options.items())
        lines.append(f"    n{number} [{texts}];")
    for source, target, passed in picture.arrows:
        label = "" if passed is None else f' [label="{passed}"]'
        lines.append(f"    n{source} -> n{target}{label};")
    if picture.left_out:
        lines.append(f'    more [label="and {picture.left_out} more operators"];')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    # Graphviz reads entities in labels, such as "&lt;".
    escaped = re.sub(r'(["\\])', r"\\\1", text.replace("&", "&amp;")).replace("\n", r"\n")
    return f'"{escaped}"'


def text(graph: Topology) -> str:
    """Return the graph as text: a line for each operator, and where its values go."""
    picture = picture_of(graph)
    targets: dict[int, list[int]] = {}
    for arrow in picture.arrows:
        targets.setdefault(arrow.source, []).append(arrow.target)
    lines = []
    for number, box in enumerate(picture.boxes):
        names = ", ".join(picture.boxes[target].name for target in targets.get(number, ()))
        figures = f"  [{'; '.join(box.figures)}]" if box.figures else ""
        mark = "  <- bottleneck" if box.is_bottleneck else ""
        lines.append(box.title + (f" -> {names}" if names else "") + figures + mark)
    if picture.left_out:
        lines.append(f"and {picture.left_out} more operators")
    return "\n".join(lines)
