"""Tests of what clients read: kinds, no paths, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.dispatch.columns import error_of, failure_of, progress_of, without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: '/var/lib/app/scene.blend'", "no such file: 'scene.blend'"),
        ("C:\\Users\\me\\scene.blend is broken", "scene.blend is broken"),
        ("\\\\server\\share\\scene.blend", "scene.blend"),
        ("see https://example.org/help/me?x=1", "see https://example.org/help/me?x=1"),
        ("3/4 done, 12/25", "3/4 done, 12/25"),
        ("and/or", "and/or"),
        ("/tmp", "/tmp"),
        ("(/srv/a/b/c.py, line 7)", "(c.py, line 7)"),
        ("", ""),
    ],
)
def test_paths_are_stripped_and_nothing_else(text: str, shown: str) -> None:
    """Clients would learn how our machines look, or could not read what went wrong."""
    assert without_paths(text) == shown


def test_errors_begin_with_their_kind_and_are_bounded() -> None:
    """Clients that tell errors apart by their kind would be lost; a traceback would fill the
    table.
    """
    assert error_of("capacity", "no worker") == "capacity: no worker"
    assert len(error_of("internal", "x" * 5000)) == 1024
    assert error_of("Not a kind: at all", "x").startswith("internal: ")
    assert error_of("internal", "nul \x00 and \ud800") == "internal: nul � and ?"
    assert len(progress_of("x" * 5000)) == 256
    assert progress_of(7) == "7"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("input", "input: x"),
        ("internal", "internal: x"),
        ("out of paper", "out of paper: x"),
        ("Input", "internal: Input: x"),
        ("", "internal: : x"),
        ("a" * 33, f"internal: {'a' * 33}: x"),
        (7, "internal: 7: x"),
        ("capacity", "internal: capacity: x"),
        ("stale", "internal: stale: x"),
        ("heartbeat lost", "internal: heartbeat lost: x"),
        ("cancelled", "internal: cancelled: x"),
    ],
)
def test_kinds_of_the_hosts_own(kind: Any, error: str) -> None:
    """A client would take a handler's failure for work that found no worker, and come back; or
    could not tell kinds apart.
    """
    assert failure_of(kind, "x") == error
