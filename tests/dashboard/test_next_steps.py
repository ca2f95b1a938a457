"""Where a page says what is to be done, it leads there: to another row, or to the button."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import insert

from rowlock import parked_index
from rowlock.dashboard.visits import named_button, named_row
from rowlock.insight.shown import row_command
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Volume
from ..payloads import payloads
from .shop_window import ago, browser, furnished


def test_a_link_leads_to_the_row_that_is_named() -> None:
    """A key of blanks, quotes or escapes would lead to another row, or to none."""
    for key in ["17", "a b", "-17", "it's", "--", "x" * 300, *payloads()]:
        found = named_row(f"2 rows are parked: {row_command('explain', 'Label', key)}")
        assert found in {("Label", key), None}
        assert found is not None or not key.isprintable()
    for text in ("nothing", "rowlock explain", "rowlock explain 'a b", "rowlock explain A 1 2"):
        assert named_row(text) is None


@pytest.mark.parametrize(
    ("do", "button"),
    [
        ('mend what the error says, then: rowlock unpark Volume 17 --reason "..."', "unpark"),
        (
            'wait; if it is gone: rowlock release Volume 17 --force --seen 91be --reason "..."',
            "release",
        ),
        ('wait, or: rowlock due Volume 17 --reason "..."', "make_due"),
        ("nothing: the next claim takes it over, within 6 s", ""),
        ("rowlock explain Fleet 3", ""),
    ],
)
def test_the_button_of_a_command_is_named(do: str, button: str) -> None:
    """Of four buttons a person would have to guess which one does what the page says."""
    assert named_button(do) == button


async def test_a_page_leads_to_what_is_to_be_done(sqlite_database: TemporaryDatabase) -> None:
    """Who is in a browser would have to find a terminal, or to copy a key."""
    await furnished(sqlite_database)
    row = {"id": 18, "status": "submitted", "parked_at": ago(60), "attempts": 20}
    index = parked_index(Volume)
    try:
        async with sqlite_database.engine.begin() as connection:
            await connection.run_sync(index.create)
            await connection.execute(insert(Volume).values(row))
        await look_at_pages(sqlite_database)
    finally:
        Volume.__table__.indexes.discard(index)  # type: ignore[attr-defined]


async def look_at_pages(database: TemporaryDatabase) -> None:
    """Look where the links lead, and which button is named."""
    async with browser(database) as client:
        for path in ("/", "/pipelines/VolumePipeline"):
            page = (await client.get(path)).text
            [link] = re.findall(r'<a href="([^"]*)">show Volume 18</a>', page)
            assert link == "/rows/Volume/18", path
        parked = (await client.get("/rows/Volume/18")).text
    assert 'data-wanted="unpark"' in parked
    assert 'data-act="unpark"' in parked
