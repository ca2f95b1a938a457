"""What a page points to is there: pages, headings, files; and every page can be found from the
menu.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, ROOT, blocks_of, name_of, pages, prose_of

MENU = ROOT / ".ci" / "mkdocs.yml"
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_OUTSIDE = re.compile(r"^[a-z]+:")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)(?: *\{ *#(?P<anchor>[\w-]+) *\})? *$", re.MULTILINE)
_NAMED_FILE = re.compile(r"`(?P<path>(?:src|tests|docs|examples|alembic|\.ci)/[\w./*-]*)`")
_PYTHON = re.compile(r"^\s*(?:import|from|def|class|async|await|return) ", re.MULTILINE)
_MENU_ENTRY = re.compile(r"^ *- (?:[^:\n]+: )?(?P<path>[\w/.-]+(?:\.md|/\*)) *$", re.MULTILINE)


def anchors_of(text: str) -> set[str]:
    """Return the anchors that headings of a page have, on the site and on a forge alike."""
    return {
        heading["anchor"] or slug(heading["text"]) for heading in _HEADING.finditer(prose_of(text))
    }


def slug(heading: str) -> str:
    """Return the anchor that is made of a heading's text."""
    bare = re.sub(r"[^\w\s-]", "", heading.lower())
    return re.sub(r"[\s-]+", "-", bare.strip())


def dead_links(page: Path, text: str) -> list[str]:
    """Find links of a page that lead to nothing. Links to the world outside are not followed."""
    found = []
    for link in _LINK.finditer(prose_of(text)):
        target, _, anchor = link["target"].partition("#")
        there = (page.parent / target).resolve() if target else page
        if _OUTSIDE.match(link["target"]):
            continue
        if target and not there.exists():
            found.append(f"{name_of(page)}: there is no {link['target']}")
        elif anchor and anchor not in anchors_of(
            text if there == page else there.read_text(encoding="utf-8")
        ):
            found.append(f"{name_of(page)}: {link['target']} has no such heading")
    return found


def strayed_links(page: Path, text: str) -> list[str]:
    """Find links that lead out of the docs: they work on a forge and not on the site."""
    targets = [
        link["target"]
        for link in _LINK.finditer(prose_of(text))
        if not _OUTSIDE.match(link["target"])
    ]
    return [
        target
        for target in targets
        if not (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]


def dead_files(text: str) -> list[str]:
    """Find files of the repository that a page names and that are not there."""
    return [
        named["path"]
        for named in _NAMED_FILE.finditer(text)
        if not list(ROOT.glob(named["path"].rstrip("/")))
    ]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_page_points_to_what_is_there(page: Path) -> None:
    """A reader would be sent to nothing."""
    text = page.read_text(encoding="utf-8")
    assert dead_links(page, text) == []
    assert dead_files(text) == []


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.is_relative_to(DOCS)], ids=name_of
)
def test_docs_stay_among_themselves(page: Path) -> None:
    """A link that works in the repository would be dead on the site."""
    assert strayed_links(page, page.read_text(encoding="utf-8")) == []


def test_menu_and_pages_match() -> None:
    """The menu would name a page that was never written, or a page would be found by nobody."""
    entries = [entry["path"] for entry in _MENU_ENTRY.finditer(MENU.read_text(encoding="utf-8"))]
    assert entries, "the menu was not found"
    listed = {path for entry in entries for path in DOCS.glob(entry)}
    assert [entry for entry in entries if not list(DOCS.glob(entry))] == []
    assert sorted(map(name_of, set(pages()) - listed - {ROOT / "README.md"})) == []
    assert len(entries) == len(set(entries))


def test_the_first_page_names_each_guide() -> None:
    """A guide would be found by those alone who read the whole menu."""
    named = set(re.findall(r"\]\(how-to/([\w-]+\.md)\)", (DOCS / "index.md").read_text("utf-8")))
    assert named == {path.name for path in (DOCS / "how-to").glob("*.md")}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_code_has_a_language(page: Path) -> None:
    """Code without a language is neither coloured nor run."""
    silent = [block for block in blocks_of(page.read_text(encoding="utf-8")) if not block.language]
    assert [block.line for block in silent if _PYTHON.search(block.text)] == []


PLANTED = "# A page\n\n## Two words, `code` { #two }\n\n## `Retry` and rest\n\n[x](TARGET)\n"


def planted(target: str) -> str:
    """Return a page that points to `target`."""
    return PLANTED.replace("TARGET", target)


@pytest.mark.parametrize("target", ["gone.md", "#two-words", "index.md#gone", "../gone"])
def test_planted_dead_link(target: str) -> None:
    """The law above would pass any link."""
    assert len(dead_links(DOCS / "planted.md", planted(target))) == 1


def test_planted_strayed_link() -> None:
    """The law above would pass a link out of the docs."""
    page = DOCS / "planted.md"
    assert strayed_links(page, planted("../examples")) == ["../examples"]
    assert strayed_links(page, planted("how-to/hints.md#x")) == []


def test_planted_dead_file() -> None:
    """The law above would pass any name of a file."""
    assert dead_files("see `examples/gone.py`, `examples/01_*.py` and `tests/shopwindow/`") == [
        "examples/gone.py"
    ]
