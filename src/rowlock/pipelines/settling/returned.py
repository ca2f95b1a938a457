"""What a hook returned that is no outcome by mistake: a forgotten return, await or pair of
brackets, or changes of ``item.row`` that nobody writes.
"""

from __future__ import annotations

import inspect

from rowlock.errors import OutcomeError
from rowlock.pipelines.outcomes import Apply, Outcome, Retry
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


def check_written(leased: LeasedTable, changed: list[str], outcome: Outcome) -> None:
    """Refuse what was `changed` of ``item.row`` and is not written by `outcome`.

    Raises:
        OutcomeError: names what was changed.
    """
    if isinstance(outcome, Apply | Retry):
        written = columns_written(leased, outcome.values)
        changed = [name for name in changed if leased.columns_by_name.get(name) not in written]
    if changed:
        names = ", ".join(changed[:NAMES_SHOWN_MAX])
        raise OutcomeError(
            f"process changed item.row ({names}), which writes nothing: return"
            f" Apply({{{changed[0]!r}: ...}})",
            column=changed[0],
        )
