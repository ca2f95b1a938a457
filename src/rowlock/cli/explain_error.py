"""``rowlock errors SLUG``: what an error means and what to change, without a look at the web.

The text is the paragraph of ``docs/reference/errors.md``. A wheel brings the page along; in a
checkout it is read from the docs.
"""

from __future__ import annotations

import argparse
import re
import sys
from difflib import get_close_matches
from pathlib import Path

from rowlock.cli import paper

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = (PACKAGE / "errors.md", PACKAGE.parents[1] / "docs" / "reference" / "errors.md")
"""Where the page is: first of a wheel, then of a checkout."""

EXPLAINED, MISUSED = 0, 2
"""Exit codes."""

_PARAGRAPH = re.compile(
    r"^## (?P<slug>[a-z]+(?:-[a-z]+)*)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\([^)]+\)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Print what an error means and what to change. Without SLUG, list all errors."
    )
    parser.add_argument(
        "slug",
        metavar="SLUG",
        nargs="?",
        help="as it stands at the end of a message, such as model-error; a class name will do",
    )


def run(options: argparse.Namespace) -> int:
    """Print the paragraph that was asked for, or all slugs, and return the exit code."""
    paragraphs = paragraphs_of(page())
    if options.slug is None:
        lines = (f"{slug:<26} {first_sentence(text)}" for slug, text in paragraphs.items())
        return _told("\n".join(lines))
    slug = slug_of(options.slug)
    if slug not in paragraphs:
        nearest = get_close_matches(slug, paragraphs, n=3)
        instead = f"did you mean {' or '.join(nearest)}?" if nearest else "without SLUG: all errors"
        print(f"rowlock errors: there is no error {slug!r}; {instead}", file=sys.stderr)
        return MISUSED
    return _told(f"{slug}\n\n{plain(paragraphs[slug])}")


def _told(text: str) -> int:
    return paper.handed_over(lambda: paper.write(text), EXPLAINED, unwritten=MISUSED)


def page() -> str:
    """Return the page of all errors.

    Raises:
        FileNotFoundError: neither the package nor a checkout around it has the page.
    """
    for path in PAGES:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"this installation lacks {PAGES[0]}; install rowlock again")


def paragraphs_of(text: str) -> dict[str, str]:
    """Return the paragraphs of a page by their slugs, in its order."""
    return {one["slug"]: one["text"].strip() for one in _PARAGRAPH.finditer(text)}


def slug_of(given: str) -> str:
    """Return the slug that is meant: it may be given as a link, or as the name of a class."""
    name = given.rpartition("#")[2].rpartition(".")[2].strip("()")
    return re.sub(r"\B(?=[A-Z])", "-", name).lower() if not name.isupper() else name.lower()


def first_sentence(text: str) -> str:
    """Return what a paragraph says first, in one line."""
    return plain(re.split(r"(?<=\.)\s", text, maxsplit=1)[0]).replace("\n", " ")


def plain(text: str) -> str:
    """Return Markdown as it is read on a terminal: links without their targets, no bold type."""
    return _LINK.sub(r"\g<text>", text).replace("**", "").replace("`", "")
