"""Commands that need no app and ask no database: ``errors`` explains an error, ``run`` runs a
program in which ``await`` may stand at the top, ``export`` and ``completion`` print files.

The text of an error is the paragraph of ``docs/reference/errors.md``. A wheel brings the page
along; in a checkout it is read from the docs.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import builtins
import inspect
import re
import sys
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

from rowlock.cli import handed_over, write

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = (PACKAGE / "errors.md", PACKAGE.parents[1] / "docs" / "reference" / "errors.md")
"""The page of all errors, of a wheel or of a checkout."""

DONE, MISUSED = 0, 2  # exit codes; an error of a program that is run is its traceback, and 1

_PARAGRAPH = re.compile(
    r"^## (?P<slug>[a-z]+(?:-[a-z]+)*)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\([^)]+\)")


def add_errors_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print what an error means and what to change. Without SLUG, list all errors."
    )
    parser.add_argument(
        "slug",
        metavar="SLUG",
        nargs="?",
        help="as it stands at the end of a message, such as model-error; a class name will do",
    )


def run_errors(options: argparse.Namespace) -> int:
    paragraphs = {one["slug"]: one["text"].strip() for one in _PARAGRAPH.finditer(page())}
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
    return handed_over(lambda: write(text), DONE, unwritten=MISUSED)


def page() -> str:
    for path in PAGES:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"this installation lacks {PAGES[0]}; install rowlock again")


def slug_of(given: str) -> str:
    """Return the slug that is meant: given as a link, or as the name of a class."""
    name = given.rpartition("#")[2].rpartition(".")[2].strip("()")
    return re.sub(r"\B(?=[A-Z])", "-", name).lower() if not name.isupper() else name.lower()


def first_sentence(text: str) -> str:
    return plain(re.split(r"(?<=\.)\s", text, maxsplit=1)[0]).replace("\n", " ")


def plain(text: str) -> str:
    """Return Markdown without the targets of links, and without bold type."""
    return _LINK.sub(r"\g<text>", text).replace("**", "").replace("`", "")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a Python program in which await may stand at the top."
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        help="without it: what is pasted, up to the end of input (Ctrl-D; Windows: Ctrl-Z, Enter)",
    )


def run_run(options: argparse.Namespace) -> int:
    file: Path | None = options.file
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        print(f"rowlock run: cannot read {file}: {error.strerror}", file=sys.stderr)
        return MISUSED
    folder = Path.cwd() if file is None else file.resolve().parent
    sys.path.insert(0, str(folder))
    run_text(text, "<pasted>" if file is None else str(file))
    return DONE


def run_text(text: str, name: str) -> None:
    """Run a program, which tracebacks call `name`, to its end."""
    code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    # Mapped classes look up their annotations in the module that they say they are of.
    page = sys.modules["__main__"] = ModuleType("__main__")
    vars(page)["__builtins__"] = builtins
    result = FunctionType(code, vars(page))()
    if inspect.iscoroutine(result):
        asyncio.run(result)


FILES: Final = {"alerts": "alerts.yaml", "grafana": "rowlock.json"}


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the dashboard for Grafana, or the alerts for Prometheus (for rule_files). Asks no"
        " database and needs no app."
    )
    parser.add_argument("what", metavar="WHAT", choices=sorted(FILES), help=" or ".join(FILES))


def run_export(options: argparse.Namespace) -> int:
    sys.stdout.write(text_of(options.what))
    return 0


def text_of(what: str) -> str:
    folder = files("rowlock.telemetry").joinpath("grafana")
    return folder.joinpath(FILES[what]).read_text(encoding="utf-8")


SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
NEEDS_EXTRA: Final = 'it needs an extra: python -m pip install "rowlock[cli]"'


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print what a shell needs to complete the command line, such as: eval"
        ' "$(rowlock completion bash)"'
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run_completion(options: argparse.Namespace) -> int:
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ImportError:
        print(f"rowlock completion: {NEEDS_EXTRA}", file=sys.stderr)
        return MISUSED
    script = shtab.complete(options.whole_parser, options.shell)
    return handed_over(lambda: write(script), DONE, unwritten=MISUSED)
