"""What a hook returned that is no outcome by mistake: a forgotten return, await or pair of
brackets, or changes of rows that nothing writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rowlock.errors import OutcomeError
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import SUCCESSES, Apply, Outcome, Retry
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import columns_written

NAMES_SHOWN_MAX = 5


def check_returned(value: object, *, hook: str, allows_none: bool) -> None:
    """Refuse what was returned by mistake.

    Raises:
        OutcomeError: says what to write.
    """
    if value is None:
        if not allows_none:
            raise OutcomeError(
                f"{hook} returned None: return Apply(...), or annotate it with -> None (or with"
                " -> Outcome | None) if that means Apply()"
            )
    elif inspect.iscoroutine(value):
        value.close()
        raise OutcomeError(
            f"{hook} returned the coroutine {value.__qualname__}, which was not awaited: write"
            " `return await ...`"
        )
    elif isinstance(value, type):
        raise OutcomeError(f"{hook} returned the class {value.__name__}: write {value.__name__}()")


def check_written(leased: LeasedTable, item: PipelineItem[Any], outcome: Outcome) -> None:
    """Refuse what was changed of ``item.row`` and is not written by `outcome`; and of a success,
    what was changed of related rows or in a session of the item, and is not written either.

    Raises:
        OutcomeError: names what was changed.
    """
    changed = item.changed_attributes()
    if changed and isinstance(outcome, Apply | Retry):
        written = columns_written(leased, outcome.values)
        changed = [name for name in changed if leased.columns_by_name.get(name) not in written]
    if changed:
        raise OutcomeError(
            f"process changed item.row ({_shown(changed)}), which writes nothing: return"
            f" Apply({{{changed[0]!r}: ...}})",
            column=changed[0],
        )
    if not isinstance(outcome, SUCCESSES):
        return
    if item.held is not None and (of_related := item.held.unwritten(outcome.related)):
        raise OutcomeError(
            f"process changed related rows ({_shown(of_related)}), which writes nothing: return"
            " Apply(related={row: {...}})"
        )
    if item.unwritten:
        raise OutcomeError(
            f"process left item.session() without a commit ({_shown(item.unwritten)}), which writes"
            " nothing: commit it, roll it back, or return what is to be written as an outcome"
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN_MAX])
