"""Small pictures: SVG without styles of its own, so that no policy forbids it. Pure.

The one idea: in a graph an operator stands behind all that feed it, and a line that passes a column
has a place of its own there, as a box would, so no line runs below a box. That is how layered
graphs have been drawn since Sugiyama, Tagawa and Toda (1981); one pass over the order is enough
here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from rowlock.errors import shorten
from rowlock.insight.replicas import Sample

if TYPE_CHECKING:
    # A wing may have been left out.
    from rowlock.graph.statistics import Arrow, Box, OperatorStatistics, Picture


# ---------------------------------------------------------------- graphs


BOXES_MAX: Final = 60  # most operators that are drawn; the table has all of them
BOX_WIDTH: Final = 180
BOX_HEIGHT: Final = 64
JOINT_WIDTH: Final = 24  # of an operator that only passes values from lanes to lanes
ACROSS: Final = 68  # between two columns, with room for a count on a line; all in pixels
DOWN: Final = 24
MARGIN: Final = 8
TITLE_CHARS_MAX: Final = 20  # longest title of a box; the table has the whole name


class Span(NamedTuple):
    """The place of a box, or of a line that passes, in its column, which ends at `column_end`."""

    x: int
    width: int
    middle: float
    column_end: int

    @property
    def end(self) -> int:
        return self.x + self.width

    @property
    def top(self) -> float:
        return round(self.middle - BOX_HEIGHT / 2, 1)


@dataclass(frozen=True, slots=True)
class DrawnBox:
    span: Span
    name: str
    title: str
    figures: str
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class DrawnArrow:
    """A line, as the attribute ``points``; `x` and `y` are the middle of its count."""

    points: str
    passed: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """What is drawn, in pixels; `left_out` operators are not."""

    box_height: ClassVar[int] = BOX_HEIGHT
    width: int
    height: int
    boxes: tuple[DrawnBox, ...]
    arrows: tuple[DrawnArrow, ...]
    left_out: int


Place = tuple[int, int]
"""A number of a box, and 0; or that of an arrow, and the column that it passes."""


def drawing_of(picture: Picture, operators: Sequence[OperatorStatistics]) -> GraphDrawing:
    """Lay `picture` out; `operators` are those of its boxes."""
    kept = picture.boxes[:BOXES_MAX]
    shown = [one for one in picture.arrows if max(one.source, one.target) < len(kept)]
    left_out = picture.left_out + len(picture.boxes) - len(kept)
    picture = picture._replace(boxes=kept, arrows=shown, left_out=left_out)
    depths = depths_of(len(picture.boxes), picture.arrows)
    ways: list[list[Place]] = [
        [(arrow.source, 0), *((-1 - number, depth) for depth in passed), (arrow.target, 0)]
        for number, arrow in enumerate(picture.arrows)
        for passed in [range(depths[arrow.source] + 1, depths[arrow.target])]
    ]
    columns = _columns(depths, ways)
    height = max(map(len, columns), default=0) * (BOX_HEIGHT + DOWN) - DOWN
    joints = {(number, 0) for number, box in enumerate(picture.boxes) if box.is_joint}
    spans: dict[Place, Span] = {}
    x = MARGIN
    for column in columns:
        width = JOINT_WIDTH if joints.issuperset(column) else BOX_WIDTH
        for at, place in enumerate(column):
            own = JOINT_WIDTH if place in joints else width
            middle = MARGIN + height * (at + 0.5) / len(column)
            spans[place] = Span(x, own, round(middle, 1), x + width)
        x += width + ACROSS
    boxes = tuple(
        DrawnBox(
            spans[number, 0],
            box.name,
            "" if box.is_joint else _title(box),
            "" if box.is_joint else f"busy {one.busy:.0%} · holds {one.held:,}",
            box.is_bottleneck,
        )
        for number, (box, one) in enumerate(zip(picture.boxes, operators, strict=False))
    )
    arrows = tuple(
        _drawn(arrow, [spans[place] for place in way])
        for arrow, way in zip(picture.arrows, ways, strict=True)
    )
    return GraphDrawing(x - ACROSS + MARGIN, height + 2 * MARGIN, boxes, arrows, picture.left_out)


def depths_of(boxes: int, arrows: Sequence[Arrow]) -> list[int]:
    """Return the column of each box: one behind the last of those that feed it."""
    feeders: dict[int, list[int]] = {number: [] for number in range(boxes)}
    for arrow in arrows:
        feeders[arrow.target].append(arrow.source)
    depths = [0] * boxes
    for number in TopologicalSorter(feeders).static_order():
        depths[number] = max((depths[one] + 1 for one in feeders[number]), default=0)
    return depths


def _title(box: Box) -> str:
    lanes = f" × {box.lanes}" if box.lanes > 1 else ""
    return shorten(box.name, chars_max=TITLE_CHARS_MAX - len(lanes)) + lanes


def _columns(depths: Sequence[int], ways: Sequence[Sequence[Place]]) -> list[list[Place]]:
    columns: list[list[Place]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for number, depth in enumerate(depths):
        columns[depth].append((number, 0))
    before = defaultdict[Place, list[Place]](list)
    for way in ways:
        for place in way[1:-1]:
            columns[place[1]].append(place)
        for place, following in pairwise(way):
            before[following].append(place)
    heights: dict[Place, float] = {}
    for column in columns:
        column.sort(
            key=lambda place: fmean([heights.get(one, 0.0) for one in before[place]] or [0])
        )
        heights |= {place: (at + 0.5) / len(column) for at, place in enumerate(column)}
    return columns


def _drawn(arrow: Arrow, way: Sequence[Span]) -> DrawnArrow:
    # A joint may be narrower than its column, and the line must not slope before the column ends.
    corners = [(way[0].end, way[0].middle)]
    if way[0].end < way[0].column_end:
        corners.append((way[0].column_end, way[0].middle))
    for span in way[1:-1]:
        corners += [(span.x, span.middle), (span.end, span.middle)]
    corners.append((way[-1].x, way[-1].middle))
    (x, y), (next_x, next_y) = corners[-2:]
    return DrawnArrow(
        " ".join(f"{x},{y}" for x, y in corners),
        "" if arrow.passed is None else f"{arrow.passed:,}",
        round((x + next_x) / 2, 1),
        round((y + next_y) / 2 - 5, 1),
    )


# ---------------------------------------------------------------- lines of numbers


WIDTH: Final = 120
HEIGHT: Final = 24
POINTS_MAX: Final = 120


def rates_between(samples: Sequence[Sample]) -> list[float]:
    return [
        max(0.0, (later.settled() - earlier.settled()) / (later.at - earlier.at))
        for earlier, later in pairwise(samples)
        if later.at > earlier.at
    ]


def points_of(values: Sequence[float]) -> str:
    """Return the corners of the line, as the attribute ``points``; empty below two numbers."""
    values = values[-POINTS_MAX:]
    if len(values) < len(("first", "last")):
        return ""
    highest, step = max(*values, 1e-9), WIDTH / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{HEIGHT - 1 - value / highest * (HEIGHT - 2):.1f}"
        for number, value in enumerate(values)
    )
