"""What a graph shows of itself: how many values passed each operator and what its lanes did
meanwhile, and a picture for Mermaid and as text.

Statistics are frozen values, made from counters that a run keeps anyway; during a run the counters
of a call in flight may be one value ahead of each other. In a picture each operator has one box;
the bottleneck of a graph that has begun to run stands out. Names are the host's, so they are
escaped: none of them can end its label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rowlock.errors import shorten
from rowlock.graph.processor import NodeStatus
from rowlock.graph.stock.carriers import ResizeProcessor
from rowlock.graph.topology import Node, RaisedLater, Topology, node_of

# ---------------------------------------------------------------- statistics


BOTTLENECK_SHARE_MIN: Final = 0.5
"""An operator is called a bottleneck if its lanes are busy for this share of the time."""

OPERATORS_AT_ONCE: Final = 50
"""How many operators are looked at before the event loop may do something else."""


@dataclass(frozen=True, kw_only=True)
class OperatorStatistics:
    """What one operator did.

    ``came + made == went + merged + failed + dropped + held``; the four shares are of the time of
    its lanes, and add up to 1.

    Attributes:
        name: of the operator.
        lanes: how many nodes it has.
        calls: how many calls of host code ended.
        came: values that were read from inputs, or dropped there unread.
        went: values that were written to outputs.
        made: values that it created.
        merged: values that became part of others.
        failed: values whose call raised, while the run went on.
        dropped: values that it left out.
        held: values that it holds now.
        busy: share in which calls ran.
        waiting: share in which calls waited for a thread or for the event loop.
        starved: share in which it waited for values, or was finished.
        blocked: share in which it waited for its consumers.
        slowest_s: the longest call, in seconds.
    """

    name: str
    lanes: int
    calls: int
    came: int
    went: int
    made: int
    merged: int
    failed: int
    dropped: int
    busy: float
    waiting: float
    starved: float
    blocked: float
    slowest_s: float

    @property
    def held(self) -> int:
        """Values that it holds now."""
        left = self.went + self.merged + self.failed + self.dropped
        return self.came + self.made - left


@dataclass(frozen=True, kw_only=True)
class GraphStatistics:
    """What one run did.

    Attributes:
        name: of the graph.
        seconds: how long the run took, or has taken so far.
        operators: in the order of adding.
        errors: what was raised after the error that ended the run; the first ones.
    """

    name: str
    seconds: float
    operators: tuple[OperatorStatistics, ...]
    errors: tuple[RaisedLater, ...]

    @property
    def bottleneck(self) -> str | None:
        """The operator whose lanes are busy most; None if none of them is busy half of the time."""
        busiest = max(self.operators, key=lambda one: one.busy, default=None)
        if busiest is None or busiest.busy < BOTTLENECK_SHARE_MIN:
            return None
        return busiest.name

    def table(self) -> str:
        """Return a line for each operator, as text for people."""
        heads = ("operator", "lanes", "calls", "in", "out", "failed", "dropped", "held")
        shares = ("busy", "waiting", "starved", "blocked", "slowest")
        rows = [(*heads, *shares), *(_row(one) for one in self.operators)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                text.rjust(width) if column else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


def statistics_of(graph: Topology) -> GraphStatistics:
    return _whole(graph, operators_of(graph))


async def statistics_in_steps(graph: Topology) -> GraphStatistics:
    """The same, and other tasks run meanwhile."""
    operators = []
    for number, operator in enumerate(operators_of(graph), start=1):
        operators.append(operator)
        if not number % OPERATORS_AT_ONCE:
            await asyncio.sleep(0)
    return _whole(graph, operators)


def operators_of(graph: Topology) -> Iterator[OperatorStatistics]:
    now = 0.0 if graph.started_at is None else _now(graph)
    for name, nodes in graph.operators.items():
        yield _operator(name, nodes, now)


def _now(graph: Topology) -> float:
    return graph.stopwatch() if graph.ended_at is None else graph.ended_at


def _whole(graph: Topology, operators: Iterable[OperatorStatistics]) -> GraphStatistics:
    return GraphStatistics(
        name=graph.name,
        seconds=0.0 if graph.started_at is None else _now(graph) - graph.started_at,
        operators=tuple(operators),
        errors=tuple(graph.later_errors),
    )


def _operator(name: str, nodes: list[Node], now: float) -> OperatorStatistics:
    processors = [node.processor for node in nodes]
    inputs = [port.edge for one in processors for port in one.inputs]
    outputs = [port.edge for one in processors for port in one.outputs]
    spent = [sum(seconds) for seconds in zip(*(_spent(node, now) for node in nodes), strict=True)]
    busy_s = sum(node.busy_s for node in nodes)
    whole = sum(spent) or 1.0
    in_calls = spent[NodeStatus.SYNC] + spent[NodeStatus.ASYNC]
    return OperatorStatistics(
        name=name,
        lanes=len(nodes),
        calls=sum(node.calls for node in nodes),
        came=sum(edge.passed - edge.target.has_data for edge in inputs),
        went=sum(edge.passed for edge in outputs),
        made=sum(one.made for one in processors),
        merged=sum(one.merged for one in processors),
        failed=sum(one.failed for one in processors),
        dropped=sum(one.dropped for one in processors) + sum(edge.unread for edge in inputs),
        busy=min(busy_s, in_calls) / whole,
        waiting=max(0.0, in_calls - busy_s) / whole,
        starved=(spent[NodeStatus.NEED_DATA] + spent[NodeStatus.FINISHED]) / whole,
        blocked=spent[NodeStatus.NEED_CONSUME] / whole,
        slowest_s=max(node.slowest_s for node in nodes),
    )


def _spent(node: Node, now: float) -> list[float]:
    spent = list(node.spent_s)
    spent[node.status] += max(0.0, now - node.since) if now else 0.0
    return spent


def _row(one: OperatorStatistics) -> tuple[str, ...]:
    counts = (one.lanes, one.calls, one.came, one.went, one.failed, one.dropped, one.held)
    shares = (one.busy, one.waiting, one.starved, one.blocked)
    return (
        one.name,
        *(str(count) for count in counts),
        *(f"{share:.0%}" for share in shares),
        f"{one.slowest_s:.3f} s",
    )


# ---------------------------------------------------------------- pictures


OPERATORS_MAX: Final = 500
"""How many operators a picture shows."""
NAME_CHARS_MAX: Final = 60
"""How much of a name it shows."""

_MERMAID_ENTITIES: Final = str.maketrans(
    {
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
)


class Box(NamedTuple):
    """`figures` is empty before a run, and of a joint: a resize between lanes."""

    name: str
    lanes: int
    figures: tuple[str, ...]
    is_bottleneck: bool
    is_joint: bool

    @property
    def title(self) -> str:
        return f"{self.name} × {self.lanes}" if self.lanes > 1 else self.name


class Arrow(NamedTuple):
    """`passed` values so far from one operator to another, by their numbers."""

    source: int
    target: int
    passed: int | None


class Picture(NamedTuple):
    boxes: list[Box]
    arrows: list[Arrow]
    left_out: int


def picture_of(graph: Topology) -> Picture:
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
    passed: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        source, target = node_of(edge.source).operator, node_of(edge.target).operator
        if source in numbers and target in numbers:
            key = numbers[source], numbers[target]
            passed[key] = passed.get(key, 0) + edge.passed
    arrows = [Arrow(*ends, count if has_begun else None) for ends, count in passed.items()]
    return Picture(boxes, arrows, len(statistics.operators) - len(shown))


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
    picture = picture_of(graph)
    lines = ["flowchart LR"]
    for number, box in enumerate(picture.boxes):
        label = "<br/>".join(
            line.translate(_MERMAID_ENTITIES) for line in (box.title, *box.figures)
        )
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


def text(graph: Topology) -> str:
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
