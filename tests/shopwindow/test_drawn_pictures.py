"""The pictures of graphs and streams in the docs: the texts of graphs are what the library draws
now, and real Mermaid has drawn the rest of these very texts (`python -m nox -s pictures`).
"""

from __future__ import annotations

import html
import re
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .drawn_graphs import FOLDER, HOSTILE, drawn

DRAWN = drawn()
PICTURES = [FOLDER / name for name in DRAWN if not name.endswith(".txt")]
PICTURES += sorted(FOLDER.with_name("streams").glob("*.mmd"))


def words_of(svg: str) -> list[str]:
    """Return the words that are seen in a picture, whatever lines they stand on."""
    visible = re.sub(r"<style.*?</style>|<title>.*?</title>|<!--.*?-->", "", svg, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", visible)).replace("\xa0", " ").split()


@pytest.mark.parametrize("name", DRAWN)
def test_text_is_what_the_library_draws(name: str) -> None:
    """The docs would show graphs as an earlier version drew them."""
    assert (FOLDER / name).read_text(encoding="utf-8") == DRAWN[name].rstrip("\n") + "\n"


def drawing_of(text: Path) -> str:
    """Return the picture that was drawn of a text."""
    return text.with_name(f"{text.name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", PICTURES, ids=lambda text: f"{text.parent.name}/{text.name}")
def test_picture_is_of_its_text(text: Path) -> None:
    """A picture would not be drawn anew when its text changes."""
    assert sha256(text.read_bytes()).hexdigest() in drawing_of(text).splitlines()[0]


@pytest.mark.parametrize("text", PICTURES, ids=lambda text: f"{text.parent.name}/{text.name}")
def test_picture_is_a_file_of_its_own(text: Path) -> None:
    """A browser would show a broken image: it reads a picture as XML, and a page as HTML."""
    root = ElementTree.fromstring(drawing_of(text))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"]) > 100


def test_names_are_drawn_letter_by_letter() -> None:
    """A name would be taken for markup, a formula, an icon or a directive by what draws it."""
    seen = "".join(words_of((FOLDER / "hostile.mmd.svg").read_text(encoding="utf-8")))
    for one in HOSTILE:
        assert "".join(one.split()) in seen


def test_counts_and_the_bottleneck_are_drawn() -> None:
    """A reader of the docs would not see what a picture of a run shows."""
    svg = (FOLDER / "ran.mmd.svg").read_text(encoding="utf-8")
    assert "fde2c4" in svg
    assert {"1000", "calls", "busy", "starved", "blocked"} <= {
        word.strip(",") for word in words_of(svg)
    }
