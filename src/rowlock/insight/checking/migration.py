"""The migration that mends findings, as text: Alembic's own operations, so that it runs in three
years without us. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rowlock.insight.checking.finding import Finding, Level

COMMENT_WIDTH: Final = 96
_INDENT: Final = "    "


def migration_text(found: Sequence[Finding]) -> str:
    """Return a migration with what mends the findings; the others are comments in it.

    What runs outside of a transaction comes last: it commits all that came before.
    """
    mends = sorted((mend for one in found for mend in one.mends), key=lambda mend: mend.commits)
    unmended = [one for one in found if not one.mends and one.level is not Level.NOTE]
    up = [line for mend in mends for line in _lines(mend.up, commits=mend.commits)]
    down = [line for mend in reversed(mends) for line in _lines(mend.down, commits=mend.commits)]
    comments = [
        row
        for one in unmended
        for row in _comment(f"to be mended by hand: {one.about}: {one.text}")
    ]
    return "\n".join(
        [
            '"""What `rowlock check` found."""',
            "",
            "import sqlalchemy as sa",
            "from alembic import op",
            "",
            *_function("upgrade", [*comments, *up]),
            *_function("downgrade", down),
        ]
    )


def _lines(steps: Sequence[str], *, commits: bool) -> list[str]:
    if not commits or not steps:
        return list(steps)
    return ["with op.get_context().autocommit_block():", *(_INDENT + step for step in steps)]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, COMMENT_WIDTH - len(_INDENT), initial_indent="# ", subsequent_indent="# "
    )


def _function(name: str, lines: Sequence[str]) -> list[str]:
    is_empty = all(line.startswith("#") for line in lines)
    body = [*lines, *(["pass"] if is_empty else [])]
    return ["", f"def {name}() -> None:", *(_INDENT + line for line in body), ""]
