"""Draws ``rowlock top``: ``python -m tests.cli.picture_of_top`` writes ``docs/pictures/top.svg``.

The one idea: it is the program itself, without a terminal, on a database that was filled for it.
Nothing in the picture is loaded from elsewhere: the font is the reader's own.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rowlock.cli.top import TopApp
from rowlock.clock import monotonic
from rowlock.testing.databases import open_sqlite_database

from .watched_app import URL_VARIABLE, furnish, questions

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "top.svg"
SIZE = (112, 22)
RATES = (1.2, 3.0, 4.1, 7.0, 11.2, 14.0, 12.1, 9.0, 6.2)
"""Of the minutes before the picture, which is of the first second of a run."""
_FONT_FACES = re.compile(r"@font-face \{.*?\}", re.DOTALL)


async def drawn(size: tuple[int, int] = SIZE, keys: Sequence[str] = ()) -> str:
    """Return the picture as SVG, after some keys were pressed."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_sqlite_database(Path(folder) / "shop.db")
        await furnish(database)
        os.environ[URL_VARIABLE] = database.url.render_as_string(hide_password=False)
        app = TopApp(questions())
        now = monotonic()
        for age, rows_s in enumerate(reversed(RATES), start=1):
            app._rates.add(now - age * 60, [("VolumePipeline", rows_s)])
        async with app.run_test(size=size) as pilot:
            while app._looker.seen.look is None:
                await pilot.pause()
            for key in keys:
                await pilot.press(key)
                while "asking the database" in (svg := app.export_screenshot()):
                    await pilot.pause()
            await pilot.pause()
            svg = app.export_screenshot(title="rowlock top")
        app.stop_looking()
        await database.aclose()
    return _FONT_FACES.sub("", svg).replace("Fira Code, ", "")


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(drawn()), encoding="utf-8")
    print(f"wrote {PICTURE}")
