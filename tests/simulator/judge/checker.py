"""The one judge of a history: which promises were broken, and by which change.

The one idea: it judges what was committed and nothing else, so the same judge serves a simulation,
a chaos run and a host's test. Each rule is named after the promise that it watches over; what the
library may do in keeping with its promises is legal here, and no rule rests on an order that the
historian does not vouch for.

| promise | what is looked for |
|---|---|
| A1 | an outcome without a lease; a token that comes back; two outcomes under one token |
| A2 | a lease replaced by another token while it was alive by the database's time |
| A3 | an expired lease renewed under its own token |
| A5 | a related row locked without its main row, or freed later than it; half a lease |
| A6 | an outcome that writes a column which only services write (`services_own`) |
| A8 | `last_processed_at` going back, or ahead of the clock; two times in one transaction |
| A9 | a name in `lock_owner` by somebody who may not put it there, or take it away |
| B1 | rows that are not settled in the end, or still carry a lock column (`settled`) |
| B2 | an ended lease that nobody took in time (`taken_within`); one too long (`lock_timeouts`) |
| B4 | attempts not counted one by one, or past `attempts_max`; a row taken early, or parked |
| B5 | a lease left behind by clean shutdowns (`stopped`) |

Not here: A4, A7, A10 to A12, B3 and B6, which no lock column tells of. Hosts judge their own
columns.

What it cannot see, since the lock columns do not tell:

- Who wrote. A live lease that a stranger clears, an outcome of the last holder that ends its
  successor's lease, and a name that a stranger takes from a row that was reset, look like the
  holder's own doing. (A simulation knows who committed, and judges that.)
- A second result under one token that leaves the stamp as it is: while the clock stands still or
  was set back, the second one is no outcome here. So is one that writes the host's columns alone,
  before the token is cleared.
- A reservation that another pipeline ends after a few seconds, but sooner than its own
  `retry_delay` allows.
- A row that is free, and ready, and that nobody takes for an hour. `settled` is asked in the end,
  `taken_within` is about leases.
- Attempts that are set to 0 under a holder's eyes, as a service may do that lets a row start
  afresh.
- A deleted row that comes back under the same key: it is another row here, with a history of its
  own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from rowlock.rows.database_time import STAMP_AHEAD_MAX, STAMP_SPREAD, STAMP_STEP

from .attempt_rules import attempts, endless, kept_attempts
from .history import Change, RowState
from .owner_rules import names
from .state import (
    HistoryState,
    Place,
    acquired_token,
    is_composed,
    is_outcome,
    is_stamped_ahead,
    place_of,
    whole_claims,
)
from .timeline import timeline
from .timing_rules import claimed_early, claimed_late, ended_unseen, released_late, too_long

VIOLATIONS_MAX: Final = 100
"""Most violations that are reported; the first ones tell more than the last."""

Rule = Callable[[Change, HistoryState], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        promise: such as ``A2``.
        text: what was done.
        table: of the row.
        key: of the row, as text.
        number: of the change that broke it; None if it is the state in the end.
        story: the row's changes, one a line.
    """

    promise: str
    text: str
    table: str
    key: str
    number: int | None
    story: str

    def __str__(self) -> str:
        where = f"{self.table} {self.key}" + (
            "" if self.number is None else f", change {self.number}"
        )
        return f"{self.promise} broken: {where}: {self.text}\n{self.story}"


def check(
    changes: Sequence[Change],
    *,
    settled: Callable[[str, RowState], bool] | None = None,
    stopped: bool = False,
    taken_within: timedelta | None = None,
    attempts_max: int | Mapping[str, int | None] | None = None,
    services_own: Sequence[str] = (),
    lock_timeouts: Mapping[str, timedelta] | None = None,
) -> list[Violation]:
    """Judge a history that began when its historian was installed.

    Args:
        changes: all of them, in order.
        settled: given a table's name and a row's last state, whether that row wants nothing more;
            asked for every row that is there in the end. Parked rows count as settled.
        stopped: whether every replica was shut down cleanly, and no service holds rows.
        taken_within: how long after its end a lease may stay unattended: a fetch delay, with a
            second or two for the machine.
        attempts_max: the pipelines' `max_attempts`: one for all, or that of each by its name.
        services_own: names of watched columns that no pipeline writes.
        lock_timeouts: the pipelines' `lock_timeout`, by name; leases of others are not measured.

    Returns:
        At most `VIOLATIONS_MAX` violations, in the order of the changes; empty if all is well.
    """
    rules = [*_RULES]
    if services_own:
        rules.append(("A6", partial(_overwritten, columns=services_own)))
    if lock_timeouts:
        rules.append(("B2", partial(too_long, lock_timeouts=lock_timeouts)))
    if taken_within is not None:
        rules.append(("B2", partial(claimed_late, taken_within=taken_within)))
    if attempts_max is not None:
        rules.append(("B4", partial(endless, attempts_max=attempts_max)))
    changes = whole_claims(changes)
    history_state = HistoryState()
    broken = chain(
        _along_the_way(changes, history_state, rules),
        # Only when all has been entered: generators run as they are asked.
        _in_the_end(history_state, settled=settled, stopped=stopped),
        _unseen(changes, history_state, taken_within=taken_within),
    )
    return [
        Violation(
            one.promise,
            one.text,
            *one.place,
            one.number,
            timeline(changes, *one.place, around=one.number),
        )
        for one in islice(broken, VIOLATIONS_MAX)
    ]


class _Broken(NamedTuple):
    promise: str
    text: str
    place: Place
    number: int | None = None


def _along_the_way(
    changes: Sequence[Change], history_state: HistoryState, rules: Sequence[tuple[str, Rule]]
) -> Iterator[_Broken]:
    for change in changes:
        for promise, rule in rules:
            for text in rule(change, history_state):
                yield _Broken(promise, text, place_of(change), change.number)
        history_state.enter(change)


def _in_the_end(
    history_state: HistoryState, *, settled: Callable[[str, RowState], bool] | None, stopped: bool
) -> Iterator[_Broken]:
    for place, text in _leaked(history_state):
        yield _Broken("A5", text, place)
    for place, state in history_state.rows.items():
        unsettled = None if settled is None else _unsettled(place, state, settled)
        if unsettled is not None:
            yield _Broken("B1", unsettled, place)
        if stopped and (state.lock_token is not None or state.lock_expires_at is not None):
            yield _Broken(
                "B5", f"still locked by {state.lock_owner} after everybody was shut down", place
            )


def _unseen(
    changes: Sequence[Change], history_state: HistoryState, *, taken_within: timedelta | None
) -> Iterator[_Broken]:
    if taken_within is not None and changes:
        for place, text in ended_unseen(history_state, changes[-1].at, taken_within=taken_within):
            yield _Broken("B2", text, place)


def _one_outcome(change: Change, history_state: HistoryState) -> Iterator[str]:
    before, after = change.before, change.after
    if before is not None and after is not None and is_outcome(change):
        if before.lock_token is None:
            yield "an outcome was written that no lease stands for"
        elif after.lock_token is not None:
            yield "an outcome was written that left the row locked"
        elif (history := history_state.tokens.get(before.lock_token)) and history.home not in (
            None,
            place_of(change),
        ):
            yield "an outcome was written to a related row under its main row's token"
        elif is_composed(before.lock_owner):
            yield (
                f"an outcome was written under the lease of {before.lock_owner}, which has no"
                " outcomes"
            )
    token = acquired_token(change)
    history = None if token is None else history_state.tokens.get(token)
    if (
        history is not None
        and history.home in (None, place_of(change))
        and place_of(change) in history.left
    ):
        yield f"token {token} came back after it was cleared or replaced"


def _no_theft(change: Change, history_state: HistoryState) -> Iterator[str]:
    before = change.before
    if before is None or before.lock_token is None or acquired_token(change) is None:
        return
    if before.lock_expires_at is not None and before.lock_expires_at > change.at:
        left_s = (before.lock_expires_at - change.at).total_seconds()
        yield f"the lease of {before.lock_owner} was taken {left_s:.3f} s before its end"


def _no_revival(change: Change, history_state: HistoryState) -> Iterator[str]:
    before, after = change.before, change.after
    if (
        before is None
        or after is None
        or before.lock_token is None
        or before.lock_token != after.lock_token
    ):
        return
    ends, ends_now = before.lock_expires_at, after.lock_expires_at
    # By the start of the statement: the lease was looked at no sooner.
    if ends is None or ends_now is None or ends_now <= ends or ends > change.statement_at:
        return
    history = history_state.tokens.get(before.lock_token)
    if history is not None and history.home not in (None, place_of(change)):
        # To lock a related row once more is to take it, which is judged as that.
        main = history_state.home_state(before.lock_token)
        if main is not None and main.lock_token == before.lock_token:
            return
    yield (
        f"a lease that had ended {(change.statement_at - ends).total_seconds():.3f} s before was"
        " renewed"
    )


def _related_with_main(change: Change, history_state: HistoryState) -> Iterator[str]:
    token, after = acquired_token(change), change.after
    history = None if token is None else history_state.tokens.get(token)
    if (
        token is None
        or after is None
        or history is None
        or history.home in (None, place_of(change))
    ):
        return
    main = history_state.home_state(token)
    if main is None or main.lock_token != token:
        yield f"locked under the token of {_named(history.home)}, which does not carry it any more"
    elif main.lock_expires_at is None or after.lock_expires_at is None:
        return
    elif change.transaction_at is not None and main.lock_expires_at <= change.transaction_at:
        yield f"locked under the token of {_named(history.home)}, whose lease had ended"
    elif after.lock_expires_at > main.lock_expires_at:
        yield f"locked for longer than its main row {_named(history.home)}"


def _whole_lease(change: Change, history_state: HistoryState) -> Iterator[str]:
    after = change.after
    if after is not None and (after.lock_token is None) != (after.lock_expires_at is None):
        yield "half a lease: a token and an end of the lease come and go together"


def _time_goes_on(change: Change, history_state: HistoryState) -> Iterator[str]:
    before, after = change.before, change.after
    if before is None or after is None or not is_outcome(change):
        return
    was, became = before.last_processed_at, after.last_processed_at
    if was is not None and is_stamped_ahead(change):
        if became is None or (became < was <= change.at + STAMP_AHEAD_MAX):
            yield f"last_processed_at went back from {was} to {became}"
        elif became > was + STAMP_SPREAD + 2 * STAMP_STEP:
            yield f"last_processed_at is {became}, which has not come yet"
        return
    if became is None or (was is not None and became < was):
        yield f"last_processed_at went back from {was} to {became}"
        return
    stamp = None if change.transaction is None else history_state.stamps.get(change.transaction)
    if stamp is not None and stamp != became:
        yield f"one transaction wrote two times, {stamp} and {became}"
    if became > change.at and (was is None or became > was):
        yield f"last_processed_at is {became}, which has not come yet"
    if after.parked_at not in (None, before.parked_at, became):
        yield f"one outcome wrote two times, {became} and {after.parked_at}"


def _overwritten(change: Change, _: HistoryState, *, columns: Sequence[str]) -> Iterator[str]:
    before, after = change.before, change.after
    if before is None or after is None:
        return
    # Also where the row is only released; a service that ends its own hold may write what it likes.
    is_freed = before.lock_token is not None and after.lock_token is None
    is_released = is_freed and not is_composed(before.lock_owner)
    if is_outcome(change) or is_released:
        for name in columns:
            was, became = before.values.get(name), after.values.get(name)
            if was != became:
                yield (
                    f"an outcome wrote {name}, which is the services' own: {was!r} became"
                    f" {became!r}"
                )


_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("A1", _one_outcome),
    ("A2", _no_theft),
    ("A3", _no_revival),
    ("A5", _related_with_main),
    ("A5", _whole_lease),
    ("A5", released_late),
    ("A8", _time_goes_on),
    ("A9", names),
    ("B4", attempts),
    ("B4", kept_attempts),
    ("B4", claimed_early),
)


def _leaked(history_state: HistoryState) -> Iterator[tuple[Place, str]]:
    """Find related rows that are still locked though the transaction that ended their main row's
    lease should have freed them.

    Left to their expiry, and to the sweep, are those of a main row that was deleted, swept itself,
    or taken by another's claim.
    """
    for place, state in history_state.rows.items():
        history = None if state.lock_token is None else history_state.tokens.get(state.lock_token)
        if (
            history is None
            or history.home is None
            or history.home not in history.left
            or place == history.home
        ):
            continue
        is_anothers = history.replaced_by is not None and history.replaced_by != history.owner
        if not (history.home_is_deleted or history.swept or is_anothers):
            yield (
                place,
                f"still locked under the token of {_named(history.home)}, which is free of it",
            )


def _unsettled(
    place: Place, state: RowState, settled: Callable[[str, RowState], bool]
) -> str | None:
    if (
        state.lock_token is not None
        or state.lock_owner is not None
        or state.lock_expires_at is not None
    ):
        return f"still carries lock columns of {state.lock_owner} in the end"
    if state.parked_at is None and not settled(place[0], state):
        return "is not settled in the end"
    return None


def _named(place: Place | None) -> str:
    return "an unknown row" if place is None else f"{place[0]} {place[1]}"
