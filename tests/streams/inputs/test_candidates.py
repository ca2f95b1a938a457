"""Which position is the mark: decided from moments, without a database."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock.streams.inputs.candidates import CANDIDATES_MAX, Candidates, OpenWriter, still_open


def writers(*names: str) -> tuple[OpenWriter, ...]:
    return tuple(
        OpenWriter(name, 1, "app", 1.0, was_recovered=name.startswith("-1/")) for name in names
    )


def test_what_is_visible_is_the_mark_if_none_writes() -> None:
    """An idle table would wait for nothing."""
    candidates = Candidates()
    assert candidates.look(7, ()) == 7
    assert (len(candidates), candidates.held_back_by) == (0, ())


def test_a_mark_waits_for_those_who_were_there() -> None:
    """A row that commits late would be skipped for ever."""
    candidates = Candidates()
    assert candidates.look(7, writers("a", "b")) == 0
    assert candidates.look(9, writers("b", "c")) == 0
    assert candidates.look(9, writers("c", "d")) == 7
    assert candidates.look(9, writers("d")) == 9


def test_those_who_came_later_are_not_waited_for() -> None:
    """Under steady load there would be no mark at all."""
    candidates = Candidates()
    for number in range(1, 50):
        mark = candidates.look(number, writers(f"t{number}", f"t{number + 1}"))
        assert mark == max(0, number - 2)


def test_a_mark_never_goes_back() -> None:
    """A step would end before it begins, when rows were deleted."""
    candidates = Candidates()
    candidates.look(9, ())
    assert candidates.look(3, ()) == 9
    assert candidates.look(0, writers("a")) == 9
    assert len(candidates) == 0


def test_candidates_are_bounded_and_the_oldest_stay() -> None:
    """A transaction of an hour would fill the memory; or the mark would come later, the more
    often it was looked for.
    """
    candidates = Candidates()
    for number in range(1, 1000):
        candidates.look(number, writers("long", f"t{number}"))
        assert len(candidates) <= CANDIDATES_MAX
    assert candidates.look(1000, writers("t999")) == CANDIDATES_MAX - 1
    assert candidates.look(1001, ()) == 1001


def test_who_holds_a_mark_back_is_named() -> None:
    """A host would see a lag and no reason for it."""
    old, young = OpenWriter("a", 7, "cron", 60.0), OpenWriter("b", 8, "", 1.0)
    candidates = Candidates()
    candidates.look(7, (young, old))
    assert candidates.held_back_by == (old, young)
    assert list(map(str, candidates.held_back_by)) == [
        "pid 7 (cron, open for 60.0 s)",
        "pid 8 (no name, open for 1.0 s)",
    ]
    assert str(OpenWriter("-1/7", None, "gid", None)) == "prepared (gid)"


def test_a_prepared_transaction_is_followed_through_a_restart() -> None:
    """The server gives it another name, and its rows may still come."""
    candidates = Candidates()
    candidates.look(7, writers("3/15"))
    assert candidates.look(7, writers("-1/789")) == 0
    assert candidates.look(7, writers("4/1")) == 7
    assert still_open((), writers("-1/789")) == ()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["begin", "commit", "roll back", "look"]), max_size=80), st.data())
def test_no_row_appears_at_or_below_a_mark(steps: list[str], data: st.DataObject) -> None:
    """Whatever the order of begins, commits and looks is, a late row would be lost."""
    candidates, visible, open_at, assigned = Candidates(), {0}, dict[str, int](), 0
    for step in steps:
        if step == "begin":
            assigned += 1
            open_at[f"t{assigned}"] = assigned
        elif step == "look":
            candidates.look(max(visible), writers(*open_at))
        elif open_at:
            name = data.draw(st.sampled_from(sorted(open_at)))
            position = open_at.pop(name)
            if step == "commit":
                assert position > candidates.mark
                visible.add(position)
    assert candidates.look(max(visible), ()) == max(visible)


@pytest.mark.parametrize("count", [1, 5])
def test_the_mark_comes_once_all_have_ended(count: int) -> None:
    """It would lag behind for no reason."""
    candidates, names = Candidates(), [f"t{number}" for number in range(count)]
    candidates.look(count, writers(*names))
    while names:
        assert candidates.look(count, writers(*names)) == 0
        names.pop()
    assert candidates.look(count, writers("other")) == count
