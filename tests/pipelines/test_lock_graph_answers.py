"""What the pipelines beside one tell it: who locks its rows, who else works on them, and which
of their columns services own.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import and_

from rowlock import Related
from rowlock.pipelines.lock_graph import LockGraph, declared_locks
from rowlock.rows.leased_table import LeasedTable

from ..host import Attachment, AttachmentPipeline, Run, RunPipeline, Volume, VolumePipeline

VOLUMES, RUNS, ATTACHMENTS = (LeasedTable.of(model) for model in (Volume, Run, Attachment))
WANTED = and_(Attachment.volume_id == Volume.id, Attachment.name == "wanted")


class Parent(VolumePipeline):
    """Locks some attachments of a volume; services stop volumes and resize them."""

    locks = (Related(Attachment, on=WANTED),)
    intent = (Volume.status, Volume.size_gb)


class Sibling(VolumePipeline):
    """Works on volumes too; services stop them and move them."""

    intent = (Volume.status, Volume.disk_id)


def test_what_is_declared_is_kept() -> None:
    """Rows would be kept for a parent that has no use for them, or not for the one that waits."""
    by_hand, by_itself = declared_locks("Me", VOLUMES, [Related(Attachment, on=WANTED), Attachment])
    assert (by_hand.leased.model, by_hand.on is WANTED) == (Attachment, True)
    assert (by_itself.leased.model, str(by_itself.on)) == (
        Attachment,
        str(Volume.id == Attachment.volume_id),
    )
    assert declared_locks("Me", VOLUMES, ()) == ()


def test_who_locks_rows_of_a_model() -> None:
    """Children would snatch the rows from a parent that waits for them, or leave them alone for
    nobody.
    """
    parent = Parent(lock_timeout=40, retry_delay=3, orphaned_after=700)
    lock_graph = LockGraph([parent, AttachmentPipeline(), RunPipeline()])
    [locking] = lock_graph.locking_pipelines_of(ATTACHMENTS, but="AttachmentPipeline")
    assert (locking.leased, locking.owner, locking.on is WANTED) == (parent.leased, "Parent", True)
    assert str(locking.ready) == str(parent.ready())
    assert (locking.precedence_timeout, locking.precedence_timeout_at_work) == (
        timedelta(seconds=700),
        timedelta(seconds=43),
    )
    assert lock_graph.locking_pipelines_of(ATTACHMENTS, but="Parent") == ()
    assert lock_graph.locking_pipelines_of(RUNS, but="RunPipeline") == ()
    assert lock_graph.locking_pipelines_of(VOLUMES, but="Parent") == ()


def test_which_columns_services_own() -> None:
    """What a service asked of a related row would be overwritten by whoever has it locked."""
    lock_graph = LockGraph([Parent(), Sibling(), RunPipeline()])
    assert lock_graph.intent_of(VOLUMES) == (
        Volume.__table__.c.status,
        Volume.__table__.c.size_gb,
        Volume.__table__.c.disk_id,
    )
    assert lock_graph.intent_of(RUNS) == ()
