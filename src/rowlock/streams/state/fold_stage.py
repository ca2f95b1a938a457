"""What a host declares of a fold, as a handler of a stage and the rows that it changes."""

from __future__ import annotations

from functools import wraps
from typing import Any

from rowlock.streams.computing.context import StepContext
from rowlock.streams.computing.handlers import (
    FoldHandler,
    GroupKey,
    StageHandler,
    check_handler,
    name_of,
)
from rowlock.streams.state.fold_model import FoldModel
from rowlock.streams.state.fold_table import FoldTable
from rowlock.streams.state.folded_row import FoldCodec, HeldRow


class FoldStage:
    """A fold into rows of one model.

    Args:
        model: of the host.
        by: what events are grouped by; None: by their key.
        cache: rows are kept in memory between steps.

    Attributes:
        table: the rows.

    Raises:
        ModelError: it cannot be folded into; the text says what to change.
    """

    def __init__(self, model: type[Any], *, by: GroupKey[Any] | None, cache: bool) -> None:
        known = FoldModel(model, is_keyed_by_host=by is not None, is_cached=cache)
        self.table = FoldTable(known, is_cached=cache)
        self._codec = FoldCodec(known)
        self._by = None if by is None else known.checked(by)

    def handler(self, call: FoldHandler[Any, Any]) -> StageHandler:
        """Return the function of the host as a handler.

        Raises:
            ConfigurationError: it cannot be one.
        """
        check_handler(call, "fold")

        @wraps(call, updated=())
        def change(step: StepContext, held: HeldRow, events: list[Any]) -> None:
            # What it returns is looked at: a fold returns nothing.
            return call(step, held.row, events)

        codec = self._codec
        return StageHandler(name_of(call), "fold", change, codec, by=self._by, fresh=codec.fresh)
