"""Runs the program of a page as ``rowlock run`` does: ``python run_page.py PROGRAM NAME``, in the
folder where its files are. `NAME` is what tracebacks call the program.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rowlock.cli.without_app import run_text


def main(program: Path, name: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    run_text(program.read_text(encoding="utf-8"), name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
