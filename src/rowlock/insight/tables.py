"""The optional tables of the windows, in the host's metadata, so that the host's migrations own
them; and the gate that makes a pause.

The one idea: a pause is committed, not sent. Each claim asks the table in the same statement in
which it looks for rows, so no replica can miss a pause, and a restart keeps it.

Not here: the columns, and the steps of migrations (``migrations.py``); who writes the rows
(``steering.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, MetaData, String, Table, exists, literal, not_, or_

from rowlock import database_now
from rowlock.errors import ConfigurationError
from rowlock.insight.migrations import (
    CONTROLS,
    HISTORY,
    REPLICAS,
    controls_columns,
    history_table,
    replicas_columns,
)
from rowlock.spi import LeasedTable


@dataclass(frozen=True, eq=False)
class InsightTables:
    """The optional tables of a host.

    Attributes:
        replicas: in which replicas say that they live; None if the host lends none.
        controls: the pauses; None if the host lends none.
        history: what became of each row; None if the host lends none.
    """

    replicas: Table | None
    controls: Table | None
    history: Table | None = None

    def pause_gate(self, leased: LeasedTable, pipeline: str) -> ColumnElement[bool]:
        """Return the condition that `pipeline` is not paused, for the `gates` of a manager.

        Raises:
            ConfigurationError: the host lends no table of pauses.
        """
        return not_(self.is_paused(pipeline))

    def is_paused(self, pipeline: str) -> ColumnElement[bool]:
        """Return the condition that `pipeline` is paused, by the database's clock.

        Raises:
            ConfigurationError: the host lends no table of pauses.
        """
        if self.controls is None:
            raise ConfigurationError(
                "pause_gate needs the table of pauses: insight_tables(metadata, controls=True)"
            )
        paused = self.controls.c
        return (
            exists()
            .select_from(self.controls)
            .where(
                paused.pipeline == literal(pipeline, String),
                or_(paused.until.is_(None), paused.until > database_now()),
            )
        )


def insight_tables(
    metadata: MetaData, *, replicas: bool = True, controls: bool = True, history: bool = False
) -> InsightTables:
    """Put the optional tables into the host's metadata, and return them.

        tables = insight_tables(Base.metadata)
        manager = PipelineManager(sessions, pipelines, gates=[tables.pause_gate])

    `rowlock.insight.migrations.add_insight_tables` is the step of a migration that makes them, and
    `rowlock.insight.migrations.add_history_table` that for the history; autogenerate writes
    them, too. Called again, it returns the same tables.

    Args:
        metadata: the host's, such as ``Base.metadata``.
        replicas: whether replicas say in a table that they live, and what they have in hand.
        controls: whether pipelines can be paused.
        history: whether what becomes of each row is kept for some days; it costs an entry with
            each outcome.

    Raises:
        ConfigurationError: `metadata` is none.
    """
    if not isinstance(metadata, MetaData):
        raise ConfigurationError(
            "insight_tables takes the host's metadata, such as Base.metadata, not"
            f" {metadata!r:.100}"
        )

    def table(name: str, make: Callable[[], Table]) -> Table:
        known = metadata.tables.get(f"{metadata.schema}.{name}" if metadata.schema else name)
        return make() if known is None else known

    return InsightTables(
        table(REPLICAS, lambda: Table(REPLICAS, metadata, *replicas_columns()))
        if replicas
        else None,
        table(CONTROLS, lambda: Table(CONTROLS, metadata, *controls_columns()))
        if controls
        else None,
        table(HISTORY, lambda: history_table(metadata)) if history else None,
    )


def tables_of(gates: Iterable[Any]) -> InsightTables | None:
    """Return the tables whose pauses are among the `gates` of a manager; None if there are none."""
    for gate in gates:
        owner = getattr(gate, "__self__", None)
        if isinstance(owner, InsightTables) and gate == owner.pause_gate:
            return owner
    return None
