"""A tree of migrations that Alembic writes itself, in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import alembic.templates  # type: ignore[import-not-found]
from alembic.config import Config
from sqlalchemy import Connection, MetaData

from alembic import command
from rowlock.testing import TemporaryDatabase

TEMPLATE = Path(alembic.__path__[0]) / "templates" / "generic" / "script.py.mako"
ENVIRONMENT = """\
from alembic import context
from rowlock.migrations import autogenerate_options

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["metadata"],
    compare_server_default=True,
    render_as_batch=context.config.attributes["batch"],
    **autogenerate_options(**context.config.attributes["own"]),
)
with context.begin_transaction():
    context.run_migrations()
"""


class WrittenTree:
    """Migrations from one state of the models to the next, run on one database."""

    def __init__(self, folder: Path, database: TemporaryDatabase) -> None:
        (folder / "versions").mkdir(parents=True, exist_ok=True)
        (folder / "env.py").write_text(ENVIRONMENT, encoding="utf-8")
        (folder / "script.py.mako").write_text(TEMPLATE.read_text("utf-8"), encoding="utf-8")
        self.folder, self._database, self._seen = folder, database, set[Path]()
        self.config = Config()
        self.config.set_main_option("script_location", str(folder).replace("%", "%%"))
        self.config.attributes.update(batch=False, own={}, metadata=MetaData())

    async def write(self, metadata: MetaData, message: str) -> list[str]:
        """Have Alembic write what leads to `metadata`; return the text of each file, in order."""
        self.config.attributes["metadata"] = metadata
        await self._run(lambda: command.revision(self.config, message, autogenerate=True))
        written = set((self.folder / "versions").glob("*.py")) - self._seen
        self._seen |= written
        texts = [path.read_text("utf-8") for path in written]
        return sorted(texts, key=lambda text: "indexes of claims" in text)

    async def write_by_hand(self, message: str) -> None:
        """Have Alembic write a migration with nothing in it."""
        await self._run(lambda: command.revision(self.config, message))

    async def upgrade(self) -> None:
        await self._run(lambda: command.upgrade(self.config, "head"))

    async def check(self) -> None:
        """Compare, as ``alembic check`` does."""
        await self._run(lambda: command.check(self.config))

    async def downgrade(self, revision: str) -> None:
        await self._run(lambda: command.downgrade(self.config, revision))

    async def _run(self, steps: Callable[[], Any]) -> None:
        def run(connection: Connection) -> None:
            self.config.attributes["connection"] = connection
            steps()

        async with self._database.engine.connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
