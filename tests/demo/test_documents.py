"""Counting a file in chunks, and finding the files."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rowlock.demo import documents, files
from rowlock.demo.documents import CHUNK_BYTES, DONE, UNREADABLE, read_and_count
from rowlock.demo.verdict import recount


@given(st.text(alphabet="ab \n\r\t\x0b\x00\xa0", max_size=40), st.integers(1, 7))
def test_chunks_do_not_show_in_the_counts(text: str, chunk: int) -> None:
    """A word across the border of two chunks would be counted twice, and large files would seem to be wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(text.encode())
        whole_chunk, documents.CHUNK_BYTES = documents.CHUNK_BYTES, chunk
        try:
            counts = read_and_count(path)
        finally:
            documents.CHUNK_BYTES = whole_chunk
        assert (DONE, counts.sha256, counts.size, counts.lines, counts.words) == recount(path)


def test_large_file_is_read_in_chunks(tmp_path: Path) -> None:
    """The whole of a large file would be in memory, once for each worker."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * CHUNK_BYTES * 16)
    tracemalloc.start()
    try:
        assert read_and_count(path).words == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < CHUNK_BYTES * 8


def test_unreadable_file_is_settled(tmp_path: Path) -> None:
    """A file that vanished meanwhile would be tried again and again, and the demo would wait for it."""
    item: Any = SimpleNamespace(row=SimpleNamespace(path="nowhere"))
    notes: Any = SimpleNamespace(started=lambda item: None)
    assert documents.CatalogueFiles(tmp_path, notes).process(item).values == {"status": UNREADABLE}
    assert recount(tmp_path / "nowhere")[0] == UNREADABLE


def test_only_regular_files_are_found(tmp_path: Path) -> None:
    """A link could lead round in circles, and a file of Python's own could change between the two counts."""
    (tmp_path / "b" / "__pycache__").mkdir(parents=True)
    for name in ("b/two", "a", "b/__pycache__/no.pyc"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    assert files.find_files(tmp_path, 10) == ["a", "b/two"]


def test_no_more_files_than_asked_for(tmp_path: Path) -> None:
    """``--rows`` would not bound the demo."""
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert files.find_files(tmp_path, 3) == ["0", "1", "2"]
