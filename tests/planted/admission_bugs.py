"""The guards of submissions: who waits for whom, what is too many, and which row gives way."""

from __future__ import annotations

from bug import Bug

ADMISSION = "tests/dispatch/test_admission.py"
CANCELLATION = "tests/dispatch/test_cancellation.py"
AT_ONCE = "tests/dispatch/test_admission_at_once.py"
EXACT = f"{AT_ONCE}::test_all_get_a_row_or_a_refusal_and_the_ceiling_is_exact"
UNTIL_COMMIT = "tests/locks/test_until_commit.py"

ADMISSION_BUGS = (
    Bug(
        "hosts that begin transactions themselves cannot lock where they begin",
        "locks/until_commit.py",
        "    if not is_new and await is_in_transaction(connection):\n",
        "    if await is_in_transaction(connection):\n",
        (f"{UNTIL_COMMIT}::test_a_transaction_that_did_nothing_so_far_may_have_begun",),
    ),
    Bug(
        "a savepoint is left behind by who waits for a lock",
        "locks/until_commit.py",
        "    return connection, for_savepoints == [False]\n",
        "    return connection, bool(for_savepoints)\n",
        (
            f"{UNTIL_COMMIT}::test_a_transaction_that_did_nothing_so_far_may_have_begun",
            f"{AT_ONCE}::test_a_savepoint_that_is_open_is_kept",
        ),
    ),
    Bug(
        "submissions take no turns on SQLite",
        "dispatch/turns.py",
        '        return is_bound and bind_of(session, self._leased).dialect.name == "sqlite"\n',
        "        return False\n",
        (f"{EXACT}[DELETE-None]",),
    ),
    Bug(
        "hosts that begin transactions themselves have no turns",
        "dispatch/turns.py",
        "        if begun_by_host and (not is_new or await unless()):\n",
        "        if begun_by_host:\n",
        (f"{EXACT}[DELETE-BEGIN]",),
    ),
    Bug(
        "what a host wrote before its submission is lost",
        "dispatch/turns.py",
        "        if begun_by_host and (not is_new or await unless()):\n",
        "        if begun_by_host and await unless():\n",
        (f"{AT_ONCE}::test_what_the_host_has_done_before_is_kept[BEGIN]",),
    ),
    Bug(
        "who attaches keeps others from writing",
        "dispatch/turns.py",
        "        if begun_by_host and (not is_new or await unless()):\n",
        "        if begun_by_host and not is_new:\n",
        (f"{AT_ONCE}::test_who_writes_nothing_keeps_nobody_waiting[BEGIN]",),
    ),
    Bug(
        "somebody writes between the look and the row",
        "dispatch/turns.py",
        "            await self._wait(session, connection, writes=begun_by_host)\n",
        "            await self._wait(session, connection, writes=False)\n",
        (f"{AT_ONCE}::test_nobody_writes_between_the_look_and_the_row[BEGIN]",),
    ),
    Bug(
        "who waited for the file in vain keeps the turn",
        "dispatch/turns.py",
        "            self.give_back(session)\n            held = False\n",
        "            held = False\n",
        (f"{AT_ONCE}::test_a_turn_that_does_not_come_is_told[BEGIN-another process]",),
    ),
    Bug(
        "who writes nothing keeps the turn",
        "dispatch/admission.py",
        "            if has_turn and not made:\n",
        "            if False:\n",
        (f"{AT_ONCE}::test_who_writes_nothing_keeps_nobody_waiting[None]",),
    ),
    Bug(
        "the ceiling does not count what waits",
        "dispatch/admission.py",
        "        few = select(self._leased.key).where(is_active(self._leased)).limit(",
        "        few = select(self._leased.key).where(self._model.status == RUNNING).limit(",
        (f"{AT_ONCE}::test_the_ceiling_is_exceeded_only_by_those_who_submit_at_the_same_moment",),
    ),
    Bug(
        "those who were refused at once come back at once",
        "dispatch/admission.py",
        "            wait = self._settings.retry_interval + random.random() * self._settings.jitter\n",
        "            wait = self._settings.retry_interval\n",
        (f"{ADMISSION}::test_those_who_are_refused_at_once_come_back_one_by_one[sqlite]",),
    ),
    Bug(
        "work that was given back a moment ago is stale",
        "dispatch/admission.py",
        "and_(expires_at.is_(None), given_back))",
        "and_(expires_at.is_(None), model.started_at <= long_ago))",
        (f"{ADMISSION}::test_a_row_that_was_given_back_a_moment_ago_is_attached_to",),
    ),
    Bug(
        "a submission says when it is due",
        "dispatch/states.py",
        "for name in (*DISPATCH_COLUMNS, *WHEN_COLUMNS)}",
        "for name in DISPATCH_COLUMNS}",
        (f"{ADMISSION}::test_a_submission_gives_nothing_of_the_mixins[sqlite-deadline_at]",),
    ),
    Bug(
        "what is done can be cancelled",
        "dispatch/cancellation.py",
        "model.dedup_key == dedup_key, is_active(leased))",
        "model.dedup_key == dedup_key)",
        (f"{CANCELLATION}::test_what_is_settled_stays[sqlite]",),
    ),
    Bug(
        "who cancels one key cancels them all",
        "dispatch/cancellation.py",
        "model.dedup_key == dedup_key, is_active(leased))",
        "is_active(leased))",
        (f"{CANCELLATION}::test_what_waits_is_not_begun[sqlite]",),
    ),
    Bug(
        "who cancels is shown the row as it was",
        "dispatch/cancellation.py",
        "populate_existing=shows_anew(session, model), ",
        "",
        (f"{CANCELLATION}::test_it_joins_the_callers_transaction[sqlite]",),
    ),
    Bug(
        "a cancelled row is as good as waiting",
        "dispatch/cancellation.py",
        '"status": FAILED, ',
        '"status": "pending", ',
        (f"{CANCELLATION}::test_what_waits_is_not_begun[sqlite]",),
    ),
)
