"""The page of what was tried of streams: it has each story of the crash matrix, and is made of what
its runs have written.
"""

from __future__ import annotations

from itertools import product

import pytest

from ..streams.crashes.matrix import ACTS
from ..streams.crashes.page import DATABASES, NOT_TRIED, PAGE, cells_of, table_of, with_table
from ..streams.crashes.stories import STORIES
from .named_tests import rows_below

RUN = [
    f"{story} | {act} | {database} | 12 | 3 | 4 | equal"
    for story, act, database in product(STORIES, ACTS, DATABASES)
]


def test_the_page_has_each_story() -> None:
    """A story would be missing, or be there without what was tried of it."""
    rows = rows_below("matrix", PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in rows] == list(STORIES)
    assert [row[1] for row in rows] == [story.about for story in STORIES.values()]
    for name, _, *tried, result in rows:
        assert len(tried) == len(ACTS) * len(DATABASES), name
        assert all(one == NOT_TRIED or int(one.split()[0]) > 0 for one in tried), name
        assert result == "equal", name


def test_the_table_is_made_of_a_run() -> None:
    """The page would show numbers that no run had."""
    page = PAGE.read_text(encoding="utf-8")
    again = f"{next(iter(STORIES))} | die | sqlite | 99 | 0 | 0 | equal"
    made = with_table(page, table_of(cells_of([*RUN, again])))
    rows = rows_below("matrix", made)
    assert [row[2] for row in rows[:2]] == ["99", "12"]
    assert {tuple(row[3:]) for row in rows} == {
        ("12", "12 (3)", "12 (3)", *("12 (4)",) * 2, "equal")
    }
    assert made.count("\n") - len(rows) == page.count("\n") - len(rows_below("matrix", page))


def test_what_was_not_tried() -> None:
    """A story that was not tried would be on the page as one that held."""
    rows = rows_below("matrix", with_table(PAGE.read_text("utf-8"), table_of(cells_of(RUN[1:]))))
    assert [cell == NOT_TRIED for cell in rows[0]] == [False] * 2 + [True] + [False] * 6
    assert all(NOT_TRIED not in row for row in rows[1:])


def test_a_story_that_came_out_otherwise() -> None:
    """A failure would be on the page as a success."""
    with pytest.raises(ValueError, match="unpack"):
        table_of(cells_of([*RUN, RUN[0].replace("equal", "AssertionError")]))
