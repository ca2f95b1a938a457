"""Columns of rows: in the order of the positions, whatever order they came in."""

from __future__ import annotations

from rowlock.streams.inputs.source import in_order


def test_columns_are_put_in_order() -> None:
    """Events of a key would change places, and a replay find another order than the step did."""
    assert in_order([(3, 1, 2), ("c", "a", "b")]) == [[1, 2, 3], ["a", "b", "c"]]


def test_columns_in_order_are_left() -> None:
    """Each row would be touched once more."""
    columns = [(1, 2), ("a", "b")]
    assert in_order(columns) is columns
    assert in_order([(), ()]) == [(), ()]
