"""Where the boxes and lines of a graph's picture are."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rowlock.dashboard.drawing import BOX_HEIGHT, TITLE_CHARS_MAX, GraphDrawing, drawing_of
from rowlock.graph.statistics import Arrow, Box, OperatorStatistics, Picture

COUNTS = ("lanes", "calls", "came", "went", "made", "merged", "failed", "dropped")
SHARES = ("busy", "waiting", "starved", "blocked", "slowest_s")
IDLE = OperatorStatistics(name="x", **dict.fromkeys(COUNTS, 0), **dict.fromkeys(SHARES, 0.4))


def drawn(boxes: int, arrows: list[tuple[int, int]], joints: frozenset[int]) -> GraphDrawing:
    made = [Box("n" * 40, 12, (), False, number in joints) for number in range(boxes)]
    picture = Picture(made, [Arrow(*one, 1000) for one in arrows], 0)
    return drawing_of(picture, [IDLE] * boxes)


@given(
    arrows=st.sets(
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted).map(tuple), max_size=20
    ),
    joints=st.frozensets(st.integers(0, 9)),
)
def test_values_go_to_the_right_and_no_line_runs_below_a_box(
    arrows: set[tuple[int, int]], joints: frozenset[int]
) -> None:
    """A person would look at boxes upon boxes, or miss what feeds an operator."""
    ways = sorted((begin, end) for begin, end in arrows if begin != end)
    drawing = drawn(10, ways, joints)
    spans = [box.span for box in drawing.boxes]
    for one, other in ((a, b) for a in spans for b in spans if a is not b):
        is_beside = one.x >= other.end or other.x >= one.end
        assert is_beside or abs(one.middle - other.middle) >= BOX_HEIGHT
    for (begin, end), arrow in zip(ways, drawing.arrows, strict=True):
        corners = [tuple(map(float, one.split(","))) for one in arrow.points.split()]
        assert corners[0] == (spans[begin].end, spans[begin].middle)
        assert corners[-1] == (spans[end].x, spans[end].middle)
        for (x, y), (next_x, next_y) in pairwise(corners):
            assert next_x > x
            below = [one for one in spans if one.x < next_x and x < one.end]
            assert not below or y == next_y
            assert all(abs(one.middle - y) >= BOX_HEIGHT / 2 for one in below)
    for one in spans:
        assert 0 < one.x < one.end < drawing.width
        assert 0 < one.top < one.top + BOX_HEIGHT < drawing.height


def test_what_stands_in_a_box() -> None:
    """A long name would run over the edge, and hide how many lanes there are."""
    box, joint = drawn(2, [(0, 1)], frozenset({1})).boxes
    assert box.title.endswith("… × 12")
    assert len(box.title) == TITLE_CHARS_MAX
    assert box.figures == "busy 40% · holds 0"
    assert (joint.title, joint.figures) == ("", "")
    assert drawn(0, [], frozenset()).boxes == ()


def test_a_drawing_has_an_end() -> None:
    """A graph of hundreds of operators would cost each viewer a page of boxes every two seconds."""
    drawing = drawn(500, [(0, number) for number in range(1, 500)], frozenset())
    assert (len(drawing.boxes), len(drawing.arrows), drawing.left_out) == (60, 59, 440)
