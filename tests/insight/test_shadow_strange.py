"""A shadow run beside strange hosts: what one row or one look meets costs nothing else."""

from __future__ import annotations

from rowlock.insight.shadowing.snapshot import is_same

from .shadowed import Unfit


def test_what_equals_nothing_is_compared_all_the_same() -> None:
    """A row that holds a NaN would always have changed; or a value of the host's end the run, with
    an exit code that says that all is well.
    """
    assert is_same(float("nan"), float("nan"))
    assert is_same(float("nan"), 1.0) is False
    assert is_same(Unfit(), "new") is None
