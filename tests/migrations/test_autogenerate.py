"""Alembic writes the migrations of adopted and of new tables, and they run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    ConfigurationError,
    LockColumns,
    Pipeline,
    ScheduleColumns,
    due_index,
    parked_index,
)
from rowlock.testing import TemporaryDatabase, run_until_settled

from .autogenerating import WrittenTree
from .conftest import picture


class Models:
    """The host's models before and after it adopted rowlock, with their pipelines."""

    def __init__(self) -> None:
        self.before = host_before()
        self.after, self.pipelines = host_after()


def host_before() -> MetaData:
    class Base(DeclarativeBase):
        pass

    class Volume(Base):
        __tablename__ = "volumes"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    class Document(Base):
        __tablename__ = "documents"
        number: Mapped[int] = mapped_column(primary_key=True)
        is_listed: Mapped[bool]

    assert Volume, Document
    return Base.metadata


def host_after() -> tuple[MetaData, list[type[Pipeline[Any]]]]:
    """Return what it has with rowlock: two adopted tables, and a new one of each kind."""

    class Base(DeclarativeBase):
        pass

    class Volume(LockColumns, Base):
        __tablename__ = "volumes"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    class Document(LockColumns, ScheduleColumns, Base):
        __tablename__ = "documents"
        number: Mapped[int] = mapped_column(primary_key=True)
        is_listed: Mapped[bool]

    class Job(LockColumns, Base):
        __tablename__ = "jobs"
        __table_args__ = (due_index("jobs", ready="status = 'new'"),)
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    class Task(LockColumns, ScheduleColumns, Base):
        __tablename__ = "tasks"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(index=True)

    class VolumePipeline(Pipeline[Volume]):
        model = Volume

        def ready(self) -> Any:
            return Volume.status == "it's 50 % new: a \\ b"

        async def process(self, item: Any) -> Apply:
            return Apply({"status": "active"})

    class DocumentPipeline(Pipeline[Document]):
        model = Document

        def ready(self) -> Any:
            return Document.is_listed

        async def process(self, item: Any) -> Apply:
            return Apply({"is_listed": False})

    due_index(VolumePipeline)
    due_index(DocumentPipeline, name="ix_listed")
    due_index(Task, ready=Task.status.in_(["new", "old"]))
    return Base.metadata, [VolumePipeline, DocumentPipeline]


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def written(tmp_path: Path, database: TemporaryDatabase) -> WrittenTree:
    return WrittenTree(tmp_path / "tree", database)


ROWS = (
    "INSERT INTO volumes (id, status) VALUES (1, 'it''s 50 % new: a \\ b'), (2, 'active')",
    "INSERT INTO documents (number, is_listed) VALUES (1, true), (2, false)",
)


async def be_before(tree: WrittenTree, database: TemporaryDatabase, models: Models) -> None:
    """Bring the database to where the host had no rowlock, with rows in its tables."""
    await tree.write(models.before, "before")
    await tree.upgrade()
    async with database.engine.begin() as connection:
        for sql in ROWS:
            await connection.execute(text(sql.replace(":", r"\:")))


@pytest.mark.parametrize("batch", [False, True], ids=["", "batch"])
async def test_what_is_written_runs_up_and_down(
    database: TemporaryDatabase, written: WrittenTree, models: Models, *, batch: bool
) -> None:
    """A host that lets Alembic write its migrations would have to mend each of them by hand, or
    would never have the index.
    """
    written.config.attributes["batch"] = batch
    await be_before(written, database, models)
    before = await picture(database)
    files = await written.write(models.after, "adopt")
    assert len(files) == 2, files
    await written.upgrade()
    await written.check()
    tables = await picture(database)
    indexes = {
        one["name"]
        for table in ("volumes", "documents", "jobs", "tasks")
        for one in tables[table]["indexes"]
    }
    assert indexes == {
        "ix_volumes_last_processed_at",
        "ix_listed",
        "ix_jobs_last_processed_at",
        "ix_tasks_due_at",
        "ix_tasks_status",
    }
    pipelines = [pipeline() for pipeline in models.pipelines]
    assert await run_until_settled(database.session_factory, pipelines) == 2
    await written.downgrade("-2")
    assert await picture(database) == before


async def test_only_what_is_there_is_indexed_concurrently(
    postgresql_database: TemporaryDatabase, tmp_path: Path, models: Models
) -> None:
    """Building the index would hold off all writes, or commit the half of a migration before it;
    heartbeats would have no room in their pages.
    """
    tree = WrittenTree(tmp_path / "tree", postgresql_database)
    await be_before(tree, postgresql_database, models)
    adopt, indexes = await tree.write(models.after, "adopt")
    assert "concurrently" not in adopt
    assert indexes.count(" add_due_index(") == indexes.count(" drop_due_index(") == 2
    assert indexes.count("concurrently=True") == 4
    for table in ("volumes", "documents", "jobs", "tasks"):
        assert f"set_fillfactor(op, '{table}')" in adopt
    await tree.upgrade()
    async with postgresql_database.engine.connect() as connection:
        settings = "SELECT count(*) FROM pg_class WHERE reloptions = '{fillfactor=70}'"
        assert (await connection.exec_driver_sql(settings)).scalar() == 4


async def test_what_is_written_is_for_all_databases(
    sqlite_database: TemporaryDatabase,
    postgresql_database: TemporaryDatabase,
    tmp_path: Path,
    models: Models,
) -> None:
    """A host that develops on SQLite and runs on PostgreSQL would keep two trees."""
    on_sqlite = WrittenTree(tmp_path / "one", sqlite_database)
    await on_sqlite.write(host_before(), "before")
    await on_sqlite.upgrade()
    text_ = "\n".join(await on_sqlite.write(models.after, "adopt"))
    assert text_.count("server_default=due_at_once()") == 2
    assert "1970" not in text_
    assert text_.count("sa.DateTime(timezone=True)") == 4 * 2 + 2 * 3
    on_postgresql = WrittenTree(tmp_path / "one", postgresql_database)
    # A boolean column is the one thing that is spelt otherwise.
    for path in (tmp_path / "one" / "versions").glob("*.py"):
        spelt = path.read_text("utf-8").replace("is_listed = 1", "is_listed")
        path.write_text(spelt, encoding="utf-8")
    await on_postgresql.upgrade()
    on_postgresql.config.attributes["metadata"] = models.after
    await on_postgresql.check()


async def test_hooks_of_the_host_are_called(
    sqlite_database: TemporaryDatabase, tmp_path: Path, models: Models
) -> None:
    """A host that renders types of its own, or edits what is written, could not any more."""
    tree = WrittenTree(tmp_path / "tree", sqlite_database)
    seen: list[int] = []

    def render(kind: str, item: Any, context: Any) -> Any:
        return "sa.VARCHAR(77)" if kind == "type" and isinstance(item, String) else False

    def edit(context: Any, revision: Any, directives: list[Any]) -> None:
        seen.append(len(directives))

    tree.config.attributes["own"] = {"render_item": render, "process_revision_directives": edit}
    (before,) = await tree.write(models.before, "before")
    assert "VARCHAR(77)" in before
    await tree.upgrade()
    await tree.write(models.after, "adopt")
    assert seen == [1, 2]


async def test_an_index_that_is_gone_or_changed(
    database: TemporaryDatabase, written: WrittenTree, models: Models
) -> None:
    """A host that leaves rowlock, or gives the index another shape, would write that by hand; and
    a migration of indexes alone would be two.
    """
    await written.write(models.after, "first")
    await written.upgrade()
    made = await picture(database)
    for name in ("volumes", "documents"):
        table = models.after.tables[name]
        table.indexes.discard(next(iter(table.indexes)))
    (gone,) = await written.write(models.after, "gone")
    assert gone.count("drop_due_index(") == 2
    assert gone.count("add_due_index(") == 2
    await written.upgrade()
    await written.check()
    assert (await picture(database))["volumes"]["indexes"] == []
    await written.downgrade("-1")
    assert [one["name"] for one in (await picture(database))["volumes"]["indexes"]] == [
        one["name"] for one in made["volumes"]["indexes"]
    ]


def host_with_one_index(of: str) -> MetaData:
    """Return the models as ``env.py`` has them; only ``"pipeline"`` is imported with an index."""

    class Base(DeclarativeBase):
        pass

    class Volume(LockColumns, ScheduleColumns, Base):
        __tablename__ = "volumes"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    if of == "condition":
        due_index(Volume, ready=Volume.status == "new")
    elif of == "parked":
        parked_index(Volume)
    elif of == "pipeline":

        class VolumePipeline(Pipeline[Volume]):
            model = Volume

            def ready(self) -> Any:
                return Volume.status == "new"

            async def process(self, item: Any) -> Apply:
                return Apply({"status": "active"})

        due_index(VolumePipeline)
    return Base.metadata


@pytest.mark.parametrize("of", ["pipeline", "condition", "parked"])
async def test_an_index_is_not_dropped_for_want_of_an_import(
    written: WrittenTree, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`env.py` lacks the import of the pipelines: autogenerate refuses to drop indexes of claims
    and of parked rows, and says which import is missing.
    """
    await written.write(host_with_one_index(of), "first")
    await written.upgrade()
    project = '[tool.rowlock]\napp = "my_service.app:manager"\n'
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    match = r"pipelines of volumes in env\.py, such as `import my_service\.app`"
    with pytest.raises(ConfigurationError, match=match):
        await written.write(host_with_one_index("nothing"), "second")
    with pytest.raises(ConfigurationError, match="ix_volumes_"):
        await written.check()
    written.config.attributes["metadata"] = host_with_one_index(of)
    await written.check()


async def test_a_migration_without_the_options_runs(written: WrittenTree) -> None:
    """A host that has not read so far gets no `NameError: rowlock` of what Alembic has written."""
    plain = (written.folder / "env.py").read_text("utf-8").splitlines()
    kept = [line for line in plain if "autogenerate_options" not in line]
    (written.folder / "env.py").write_text("\n".join(kept), encoding="utf-8")
    (text_,) = await written.write(host_with_one_index("condition"), "first")
    assert "rowlock" not in text_
    await written.upgrade()
    await written.check()


async def test_a_revision_by_hand_is_left_alone(
    sqlite_database: TemporaryDatabase, tmp_path: Path, models: Models
) -> None:
    """``alembic revision`` without ``--autogenerate`` would compare all the same."""
    tree = WrittenTree(tmp_path / "tree", sqlite_database)
    tree.config.attributes["metadata"] = models.after
    await tree.write_by_hand("mine")
    (path,) = (tmp_path / "tree" / "versions").glob("*.py")
    assert "due_index" not in path.read_text("utf-8")


async def test_an_index_of_another_condition_is_made_anew(
    database: TemporaryDatabase, written: WrittenTree, models: Models
) -> None:
    """A host that changes `ready` would keep an index that serves no claim, and not hear of it."""
    await be_before(written, database, models)
    await written.write(models.after, "adopt")
    await written.upgrade()
    async with database.engine.begin() as connection:
        await connection.execute(text("DROP INDEX ix_tasks_due_at"))
        another = "CREATE INDEX ix_tasks_due_at ON tasks (due_at, id) WHERE status = 'another'"
        await connection.execute(text(another))
    [again] = await written.write(models.after, "again")
    assert again.count(" add_due_index(") == again.count(" drop_due_index(") == 2
    await written.upgrade()
    await written.check()
    await written.downgrade("-1")
    indexes = (await picture(database))["tasks"]["indexes"]
    assert any("another" in str(one["dialect_options"]) for one in indexes), indexes
