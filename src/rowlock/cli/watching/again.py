"""An answer that is asked for again and again: drawn over the last one on a terminal, and printed
one after the other elsewhere.

The one idea: a look is never begun before the last one has ended, and a database that is away is an
answer, too: the next look may find it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from math import ceil
from typing import Any, Final, NoReturn

from rowlock.cli import paper
from rowlock.cli.answering import (
    ANSWER_WITHIN_S,
    INTERRUPTED,
    Ask,
    CommandAnswer,
    failed,
    failure_document,
    message_of,
    opened,
)
from rowlock.clock import sleep
from rowlock.insight.insight import Insight

HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
LINES_MIN: Final = 2


def watched(options: argparse.Namespace, ask: Ask, *, every_s: float) -> int:
    """Ask every `every_s` seconds and print each answer, until the process is interrupted; return
    the exit code.

    Args:
        options: what `add_app_arguments` has added, and what is asked.
        ask: called with the questions of the app.
        every_s: the rest between two looks.
    """
    try:
        return asyncio.run(_watch(options, ask, every_s))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough; what Python would still write to it is lost.
        sys.stdout = None
        return 0
    except Exception as error:  # noqa: BLE001 - of the host's modules, whatever it is
        return failed(options, error)


async def _watch(options: argparse.Namespace, ask: Ask, every_s: float) -> NoReturn:
    async with opened(options) as insight:
        while True:
            _print(options, await _look(insight, ask))
            await sleep(every_s)


async def _look(insight: Insight, ask: Ask) -> CommandAnswer | Exception:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await ask(insight)
    except Exception as error:  # noqa: BLE001 - the next look may fare better
        return error


def _print(options: argparse.Namespace, answer: CommandAnswer | Exception) -> None:
    if options.json:
        document: dict[str, Any] = (
            failure_document(answer) if isinstance(answer, Exception) else answer.to_dict()
        )
        print(json.dumps(document, ensure_ascii=False), flush=True)
        return
    is_drawn = paper.may_embellish() and not options.no_colour
    width = paper.width()
    text = f"? {message_of(answer)}" if isinstance(answer, Exception) else answer.text(width)
    if is_drawn:
        print(HOME_AND_CLEAR + _cut(text), end="", flush=True)
    else:
        print(f"{text}\n", flush=True)


def _cut(text: str) -> str:
    """Return as much as the terminal has lines for: one more would move the first away."""
    size = shutil.get_terminal_size((80, 24))
    left, kept = max(LINES_MIN, size.lines - 1), list[str]()
    lines = text.split("\n")
    for line in lines:
        left -= max(1, ceil(len(line) / size.columns))
        if left < (1 if len(kept) < len(lines) - 1 else 0):
            return "\n".join([*kept, f"… {len(lines) - len(kept)} lines more"])
        kept.append(line)
    return text
