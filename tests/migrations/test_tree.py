"""The example host's tree: one head, up, down and up again, and nothing left for autogenerate to
say.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from alembic.config import Config
from pytest_alembic import Config as RunnerConfig
from pytest_alembic import tests as expected
from pytest_alembic.runner import MigrationContext, runner
from sqlalchemy import Connection, event

from alembic import command
from rowlock.testing import TemporaryDatabase

from .conftest import ROOT, Tree


@pytest.fixture
def alembic_runner(tree: Tree) -> Iterator[MigrationContext]:
    """The tree as pytest-alembic drives it; it connects by itself, to the URL that the tree was
    given.
    """
    with runner(RunnerConfig(alembic_config=tree.config)) as context:
        yield context


@pytest.mark.parametrize(
    "check",
    [
        expected.test_single_head_revision,
        expected.test_upgrade,
        expected.test_model_definitions_match_ddl,
        expected.test_up_down_consistency,
    ],
)
async def test_the_tree_holds_together(
    alembic_runner: MigrationContext, check: Callable[[MigrationContext], None]
) -> None:
    """A host that copies the tree would copy a fault: two heads, a way up or down that fails, or
    models that say otherwise.
    """
    await asyncio.to_thread(check, alembic_runner)


@pytest.mark.parametrize(("revisions", "alterations"), [("0001:head", 18), ("head:0001", 15)])
def test_sql_for_somebody_else_to_run(revisions: str, alterations: int) -> None:
    """A host whose migrations are run by a database administrator would get none, or an index
    built inside a transaction.
    """
    printed = StringIO()
    config = Config(toml_file=ROOT / "pyproject.toml", output_buffer=printed)
    config.cmd_opts = Namespace(x=["url=postgresql+asyncpg://nowhere/nothing"])
    go = command.upgrade if revisions.endswith("head") else command.downgrade
    go(config, revisions, sql=True)
    statements = [
        line for line in printed.getvalue().splitlines() if line and not line.startswith("--")
    ]
    concurrently = [
        number for number, line in enumerate(statements) if "INDEX CONCURRENTLY" in line
    ]
    assert len([line for line in statements if line.startswith("ALTER TABLE")]) == alterations
    assert concurrently
    for number in concurrently:
        opened = [line for line in statements[:number] if line in ("BEGIN;", "COMMIT;")]
        assert opened[-1] == "COMMIT;"


def test_the_tree_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who forgets the URL would be shown a traceback."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(SystemExit, match="set DATABASE_URL"):
        command.current(Config(toml_file=ROOT / "pyproject.toml"))


async def test_each_migration_is_committed_by_itself(
    database: TemporaryDatabase, tree: Tree
) -> None:
    """The index built outside a transaction would commit a half of what came before it; and a
    connection in hand is used.
    """
    commits: list[Connection] = []
    event.listen(database.engine.sync_engine, "commit", commits.append)

    def go_up(connection: Connection) -> None:
        tree.config.attributes["connection"] = connection
        command.upgrade(tree.config, "0002")

    async with database.engine.connect() as connection:
        await connection.run_sync(go_up)
    assert len(commits) == 2
