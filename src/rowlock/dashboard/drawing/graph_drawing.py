"""Where the boxes and arrows of a graph's picture stand: operators in layers, from top to bottom,
so that a chain fits a phone. Pure.

Not here: what stands in a box (``graph/building/pictures.py``), and the SVG (a template, which
escapes it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rowlock.errors import shorten
from rowlock.graph.building.pictures import Arrow, Picture

BOXES_MAX: Final = 60
"""Most operators that are drawn; the table has all of them."""
WIDTH: Final = 230
"""Of a box, in pixels."""
HEIGHT: Final = 62
GAP: Final = 20
"""Between two boxes of a layer, in pixels."""
STEP: Final = 108
"""From one layer to the next, in pixels."""
MARGIN: Final = 4
TITLE_CHARS_MAX: Final = 26
LINE_CHARS_MAX: Final = 34


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """An operator.

    Attributes:
        x: of its left side, in pixels.
        y: of its top, in pixels.
        title: its name, and its lanes.
        lines: what became of its values.
        is_bottleneck: whether its lanes are busy most.
        is_joint: whether it only passes values from lanes to lanes.
    """

    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    is_bottleneck: bool
    is_joint: bool


@dataclass(frozen=True, slots=True)
class DrawnArrow:
    """An edge.

    Attributes:
        path: as SVG has it.
        x: where its number stands, in pixels.
        y: where its number stands, in pixels.
        passed: that number.
    """

    path: str
    x: int
    y: int
    passed: str


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """A picture.

    Attributes:
        width: in pixels.
        height: in pixels.
        boxes: the operators.
        arrows: the edges.
        left_out: how many operators are not drawn.
    """

    width: int
    height: int
    boxes: tuple[DrawnBox, ...]
    arrows: tuple[DrawnArrow, ...]
    left_out: int


def drawing_of(picture: Picture) -> GraphDrawing:
    """Return where everything stands."""
    shown_boxes = picture.boxes[:BOXES_MAX]
    count = len(shown_boxes)
    arrows = [one for one in picture.arrows if one.source < count and one.target < count]
    layers = layers_of(count, arrows)
    sizes = Counter(layers)
    width = max(sizes.values(), default=1) * (WIDTH + GAP) - GAP
    placed: Counter[int] = Counter()
    boxes = []
    for box, layer in zip(shown_boxes, layers, strict=True):
        row = sizes[layer] * (WIDTH + GAP) - GAP
        x = MARGIN + (width - row) // 2 + placed[layer] * (WIDTH + GAP)
        placed[layer] += 1
        title = shorten(box.title, chars_max=TITLE_CHARS_MAX)
        lines = tuple(shorten(line, chars_max=LINE_CHARS_MAX) for line in box.figures[:2])
        boxes.append(
            DrawnBox(x, MARGIN + layer * STEP, title, lines, box.is_bottleneck, box.is_joint)
        )
    height = max(sizes, default=0) * STEP + HEIGHT
    return GraphDrawing(
        width + 2 * MARGIN,
        height + 2 * MARGIN,
        tuple(boxes),
        tuple(_arrow(boxes, one) for one in arrows),
        picture.left_out + len(picture.boxes) - count,
    )


def layers_of(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """Return the layer of each of `count` boxes: one below all that it has values from. Boxes in a
    circle have some layer.
    """
    layers = [0] * count
    for _ in range(count):
        moved = False
        for one in arrows:
            wanted = layers[one.source] + 1
            if one.source != one.target and layers[one.target] < wanted < count:
                layers[one.target], moved = wanted, True
        if not moved:
            break
    return layers


def _arrow(boxes: Sequence[DrawnBox], arrow: Arrow) -> DrawnArrow:
    source, target = boxes[arrow.source], boxes[arrow.target]
    x, y = source.x + WIDTH // 2, source.y + HEIGHT
    end_x, end_y = target.x + WIDTH // 2, target.y
    # Past the boxes of the layers between, one that skips some bends to the side.
    aside = 0 if abs(end_y - y) <= STEP else WIDTH // 2 + GAP
    bend = STEP // 3
    path = f"M{x} {y}C{x + aside} {y + bend} {end_x + aside} {end_y - bend} {end_x} {end_y}"
    passed = "" if arrow.passed is None else f"{arrow.passed:,}"
    return DrawnArrow(path, (x + end_x) // 2 + aside * 3 // 4 + 6, (y + end_y) // 2 + 4, passed)
