"""Draws the README's demo: ``python tests/demo/picture.py`` writes ``docs/pictures/demo.svg``.

The one idea: the picture is the text that the command prints, so it needs nothing of the demo's
parts. Nothing in it is loaded from elsewhere: the font is the reader's own.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "demo.svg"
COLUMNS = 112
RUN_S_MAX = 300.0
"""How long the demo may take. **Unit** seconds."""
_COLOURS = {
    r"^ok\b.*?(?=  )|^all of it holds$": "green",
    r"^BAD\b.*|^something does not hold$": "bold red",
    r"was killed with -9": "bold yellow",
    r"\b[\d,.]+ (?:s|ms|rows/s)\b": "cyan",
}
_FONT_FACES = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def shown() -> str:
    """Run the demo and return what it prints, without the paths of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "rowlock", "demo"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=True,
        )
    return re.sub(r"(?<= )/\S*/", "…/", ended.stdout)


def drawn(text: str) -> str:
    """Return a terminal with `text` as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print("[bold]$ python -m rowlock demo[/bold]")
    for line in text.splitlines():
        styled = Text(line, no_wrap=True, overflow="ellipsis")
        for pattern, style in _COLOURS.items():
            styled.highlight_regex(pattern, style)
        console.print(styled)
    return _FONT_FACES.sub("", console.export_svg(title="rowlock", theme=MONOKAI))


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(shown()), encoding="utf-8")
