"""What pipelines declare in `locks`: checked when they are built."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import ForeignKey, and_, bindparam, true
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    ConfigurationError,
    LockColumns,
    LockCycleError,
    ModelError,
    PipelineManager,
    Related,
)
from rowlock.pipelines.lock_graph import LockGraph, declared_locks, find_cycle
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping

from ..host import (
    Attachment,
    AttachmentPipeline,
    Base,
    RecordingPipeline,
    Run,
    RunPipeline,
    Volume,
    VolumePipeline,
)
from .scenes import add, counted

pytestmark = pytest.mark.either_database


class Up(AttachmentPipeline):
    locks = (Volume,)


class Down(VolumePipeline):
    locks = (Attachment,)


class Around(RunPipeline):
    """Locks volumes and is locked by attachments' pipeline below."""

    locks = (Volume,)


class Across(AttachmentPipeline):
    locks = (Run,)


# ---------------------------------------------------------------- circles


async def test_a_circle_refuses_to_start_and_is_drawn(database: TemporaryDatabase) -> None:
    """Each pipeline would be waited for by the next, and nobody would know why nothing moves."""
    manager = PipelineManager(database.session_factory, [Up(), RunPipeline(), Down()])
    with pytest.raises(LockCycleError, match="Up → Down → Up") as told:
        manager.start()
    assert told.value.cycle == ("Up", "Down")
    assert isinstance(told.value, ConfigurationError)
    assert [health.state for health in manager.health().pipelines] == ["new"] * 3


async def test_a_circle_of_three_is_found(database: TemporaryDatabase) -> None:
    """Only pairs would be found."""
    manager = PipelineManager(database.session_factory, [Around(), Across(), Down()])
    with pytest.raises(LockCycleError, match="Around → Down → Across → Around"):
        manager.start()


async def test_a_pipeline_in_a_circle_with_itself_is_refused(database: TemporaryDatabase) -> None:
    """Two rows of one table could each wait for the other."""

    class Selfish(VolumePipeline):
        locks = (Volume,)

    with pytest.raises(LockCycleError, match="Selfish → Selfish"):
        PipelineManager(database.session_factory, [Selfish()]).start()


class Kinds(DeclarativeBase):
    """A host that keeps two kinds of rows in one table."""


class Node(LockColumns, Kinds):
    __tablename__ = "nodes"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    above_id: Mapped[int | None] = mapped_column(ForeignKey("nodes.id"))
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012


class Group(Node):
    __mapper_args__ = {"polymorphic_identity": "group"}  # noqa: RUF012


class Leaf(Node):
    __mapper_args__ = {"polymorphic_identity": "leaf"}  # noqa: RUF012


class GroupPipeline(RecordingPipeline):
    model = Group
    locks = (Related(Leaf, on=true()),)

    def ready(self) -> Any:
        return Node.kind == "group"

    async def _all(self, item: Any) -> Any:
        leaves = await item.lock_related(Leaf, Leaf.above_id == item.id)
        assert {type(leaf) for leaf in leaves} == {Leaf}
        return Apply(related={leaf: {"above_id": None} for leaf in leaves})


class LeafPipeline(RecordingPipeline):
    model = Leaf

    def ready(self) -> Any:
        return Node.kind == "leaf"


class NodePipeline(RecordingPipeline):
    model = Node
    locks = (Leaf,)

    def ready(self) -> Any:
        return true()


async def test_kinds_of_one_table_are_told_apart(database: TemporaryDatabase) -> None:
    """A hierarchy that is kept in one table could not declare its locks, or not use them."""
    await database.create_tables(Kinds.metadata)
    async with database.session_factory.begin() as session:
        session.add(Group(id=1))
        await session.flush()
        session.add_all([Leaf(id=2, above_id=1), Leaf(id=3, above_id=1)])
    pipeline = GroupPipeline()
    pipeline.answer = pipeline._all
    async with stepping(database.session_factory, pipeline, beside=[LeafPipeline()]) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["applied"] == 1
    with pytest.raises(LockCycleError, match="NodePipeline → NodePipeline"):
        PipelineManager(database.session_factory, [NodePipeline()]).start()


async def test_a_running_manager_takes_no_circle(database: TemporaryDatabase) -> None:
    """The check at the start would be got round by registering later."""
    await add(database, Volume(status="idle"))
    async with PipelineManager(database.session_factory, [Down()]) as manager:
        with pytest.raises(LockCycleError):
            manager.register(Up())
        assert len(manager.health().pipelines) == 1
        manager.register(RunPipeline())


async def test_pipelines_that_are_stepped_are_checked_too(database: TemporaryDatabase) -> None:
    """A test would pass with pipelines that cannot run."""
    with pytest.raises(LockCycleError):
        async with stepping(database.session_factory, Up(), beside=[Down()]):
            pass


async def test_levels_are_no_circle(database: TemporaryDatabase) -> None:
    """A parent of parents could not be had."""
    await database.create_tables(Base.metadata)
    async with PipelineManager(database.session_factory, [Around(), Down(), AttachmentPipeline()]):
        pass


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
def test_a_circle_is_found_if_there_is_one(pairs: list[tuple[int, int]]) -> None:
    """A circle would be missed, or one drawn that is not there."""
    edges: dict[str, list[str]] = {str(node): [] for node in range(7)}
    for one, other in pairs:
        edges[str(one)].append(str(other))
    cycle = find_cycle(edges)
    for one, other in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        assert other in edges[one]
    # Whoever can be taken away again and again, since it leads nowhere, is in no circle.
    left = {node: set(successors) for node, successors in edges.items()}
    while ends := [node for node in left if not left[node] & set(left)]:
        for node in ends:
            del left[node]
    assert bool(cycle) == bool(left)


# ---------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    "entry", [Related(Attachment, on=True), Related(Attachment, on="volume_id")]
)  # type: ignore[arg-type]
def test_on_is_an_expression(entry: Any) -> None:
    """A comparison that Python made would hold up every child, or none."""

    class Wrong(VolumePipeline):
        locks = (entry,)

    with pytest.raises(ModelError, match="one SQL expression over Attachment and Volume"):
        Wrong()


@pytest.mark.parametrize("entry", ["Attachment", int, None])
def test_an_entry_is_a_model(entry: Any) -> None:
    """What cannot be locked would be found out in the middle of the night."""

    class Wrong(VolumePipeline):
        locks = (entry,)

    with pytest.raises(ModelError):
        Wrong()


@pytest.mark.parametrize("locks", [Attachment, "Attachment"])
def test_locks_is_a_list(locks: Any) -> None:
    """A model without its brackets would be an error that says nothing."""

    class Wrong(VolumePipeline):
        pass

    Wrong.locks = locks
    with pytest.raises(ModelError, match=r"Wrong\.locks is a list of models"):
        Wrong()


def test_what_two_locks_are_declared_on_keeps_its_values() -> None:
    """Two pipelines that name a parameter alike would both be respected for the rows of one of
    them.
    """
    locks = [
        Related(
            Attachment,
            on=and_(Attachment.volume_id == Volume.id, Attachment.name != bindparam("but", name)),
        )
        for name in ("first", "second")
    ]
    first, second = (declared_locks("Down", LeasedTable.of(Volume), [lock])[0].on for lock in locks)
    assert first is not None
    assert second is not None
    parameters = and_(first, second).compile(dialect=sqlite.dialect()).construct_params()
    assert sorted(parameters.values()) == ["first", "second"]


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
