"""The example host's tree: one head, up, down and up again, and nothing left for autogenerate to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from pytest_alembic import Config
from pytest_alembic import tests as expected
from pytest_alembic.runner import MigrationContext, runner

from .conftest import Tree


@pytest.fixture
def alembic_runner(tree: Tree) -> Iterator[MigrationContext]:
    """The tree as pytest-alembic drives it; it connects by itself, to the URL that the tree was given."""
    with runner(Config(alembic_config=tree.config)) as context:
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
    """A host that copies the tree would copy a fault: two heads, a way up or down that fails, or models that say otherwise."""
    await asyncio.to_thread(check, alembic_runner)
