"""A worker process and what its handler starts: one group, which ends as one, and streams that are
safe to inherit.

A process that is killed can tell nobody, so nothing of it may depend on its own last words. Its
subprocesses are found by their group. And they hold none of the pipes and sockets by whose end its
death is noticed.

Not here: subprocesses that leave the group, which nobody finds, and when a group is ended
(``process_line.py``, ``child.py``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final, NoReturn

STREAMS: Final = (0, 1, 2)
"""Standard input and output, by which anyio gives orders and gets answers, and the output for
errors, which it never reads.
"""
_OWN: list[int] = []


def lead() -> None:
    """Make this process the head of a group, in a session of its own: no terminal stops or ends
    it. It may be already.
    """
    if os.getpgrp() != os.getpid():
        os.setsid()


def kill(head: int) -> None:
    """Kill who is left of the group of `head`, which may be dead itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(head, signal.SIGKILL)


def end(code: int) -> NoReturn:
    """End this process at once, and the group that it heads."""
    # A fork of the head is not the head: there is no such group, and it ends alone.
    kill(os.getpid())
    os._exit(code)


@contextmanager
def redirected_streams() -> Iterator[list[int]]:
    """Give the block an empty input and an output that nobody reads; gives the real ones.

    What a subprocess prints would be taken for an answer, or fill a pipe until the subprocess
    stands still. And as long as one lives, the death of this process would go unnoticed.
    """
    real = [os.dup(stream) for stream in STREAMS]
    try:
        _to_nowhere(STREAMS, inheritable=True)
        yield real
    finally:
        for stream, kept in zip(STREAMS, real, strict=True):
            os.dup2(kept, stream)
            os.close(kept)


@contextmanager
def kept_from_forks(*files: int) -> Iterator[None]:
    """Let no fork of this process have `files`: as subprocesses, which lose them by themselves."""
    _watch_forks()
    _OWN.extend(files)
    try:
        yield
    finally:
        _OWN.clear()


@cache
def _watch_forks() -> None:
    # There is no way back.
    os.register_at_fork(after_in_child=lambda: _to_nowhere(_OWN, inheritable=False))


def _to_nowhere(files: tuple[int, ...] | list[int], *, inheritable: bool) -> None:
    """Not closed: a number that is free is soon another file's, and would be closed once more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(nowhere, file, inheritable)
    os.close(nowhere)
