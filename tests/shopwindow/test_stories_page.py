"""The stories of the night in the docs: each has what the command printed and, beside it, a picture
of the page of the dashboard that was taken at the same moment (`python -m nox -s pictures`).
"""

from __future__ import annotations

import re
from typing import Final

import pytest

from ..browser.pages_of_stories import digest_of
from .pages import DOCS

PAGE: Final = (DOCS / "at-3-am.md").read_text(encoding="utf-8")
STORIES: Final = (
    "poison",
    "dead-replica",
    "not-registered",
    "no-index",
    "awaited-child",
    "paused",
    "held-by-a-service",
    "hung-transaction",
)
BYTES_MAX: Final = 60_000
"""Largest file of a picture: eight of them stand on one page."""
SEEN: Final = {"not-registered": "no replica runs VolumePipeline", "no-index": "BAD"}
"""What other pages than that of the row show; that one shows the verdict."""
TOLD: Final = re.compile(
    r'<div class="story" markdown>\n\n```text\n(?P<text>.*?)```\n\n'
    r"!\[(?P<alt>[^\]]+)\]\((?P<file>[^)]+)\)\n\n</div>",
    re.DOTALL,
)


def section_of(story: str) -> str:
    return PAGE.partition(f"{{ #{story} }}")[2].partition("\n## ")[0]


def test_each_story_is_there() -> None:
    """A story would be left out of what is looked at here."""
    assert tuple(re.findall(r"^## .*\{ #([\w-]+) \}$", PAGE, re.MULTILINE)) == ("status", *STORIES)


@pytest.mark.parametrize("story", STORIES)
def test_a_story_has_its_command_and_its_page(story: str) -> None:
    """The page would show one thing and the command say another, or there would be no picture."""
    [told] = TOLD.finditer(section_of(story))
    picture = (DOCS / told["file"]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= BYTES_MAX
    assert digest_of(told["text"]).encode() in picture
    # What is to be seen, for those who do not see it.
    verdict = told["text"].splitlines()[1].split()[0]
    assert SEEN.get(story, verdict) in told["alt"]
