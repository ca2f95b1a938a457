"""The guards that random schedules and the bounds of waiting find; all on SQLite in virtual time."""

from __future__ import annotations

from bug import Bug

SCHEDULES = "tests/simulation/test_schedules.py::test_random_schedules"
LATE = "tests/simulation/test_late_locks.py"
STARVATION = "tests/simulation/test_starvation.py"

SIMULATION_BUGS = (
    Bug(
        "related rows are not freed by a reset or a retry",
        "pipelines/writer.py",
        "                await free_related(connection, item)\n",
        "                pass\n",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "a row that is given back keeps its related rows",
        "pipelines/give_back.py",
        "                await free_what_can_be(connection, item)\n            return released",
        "                pass\n            return released",
        (f"{SCHEDULES}[81]", "tests/pipelines"),
    ),
    Bug(
        "a holder that lost its row keeps its related rows",
        "pipelines/give_back.py",
        "    if not item.held:\n",
        "    if True:\n",
        (f"{LATE}::test_a_holder_that_lost_its_main_row_frees_what_it_had_locked",),
    ),
    Bug(
        "a claim leaves what the dead holder had locked",
        "leases/claim.py",
        "                await free_dead(connection, related, dead)\n",
        "                pass\n",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "related rows are locked without a main row",
        "leases/related.py",
        "        if until is None:\n            raise LeaseLost(pipeline=self._owner, row_id=item.id)\n",
        "        if until is None:\n            return item.lock_expires_at\n",
        (f"{LATE}::test_nothing_is_locked_for_a_main_row_that_is_not_the_items_any_more",),
    ),
    Bug(
        "related rows are locked under a token that the main row has no more",
        "leases/related.py",
        "token == item.lock_token, expires_at > database_instant()",
        "expires_at > database_instant()",
        (f"{LATE}::test_nothing_is_locked_for_a_main_row_that_is_not_the_items_any_more",),
    ),
    Bug(
        "related rows are let expire",
        "pipelines/heartbeater.py",
        "            return confirmed, await renew_related(connection, holders, lock_timeout=timeout)\n",
        "            return confirmed, frozenset()\n",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "live related rows are stolen",
        "rows/eligibility.py",
        '    return or_(is_free(leased), leased.attribute("lock_token") == token)',
        '    return or_(is_free(leased), leased.attribute("lock_token").is_not(None))',
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "some related rows are locked where all were wanted",
        "leases/take.py",
        "    if missing:\n",
        "    if False:\n",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "a result is written although a related row was lost",
        "leases/related_rows.py",
        "        if any((leased.model, key) not in locked for key in keys):\n",
        "        if False:\n",
        ("tests/pipelines/test_related_locks.py::test_a_related_row_that_was_lost_spoils_the_result",),
    ),
    Bug(
        "related rows are not noted before the COMMIT",
        "leases/related.py",
        "                    held.may_hold(leased, taken)\n",
        "",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "an outcome does not wait for a lock that is being taken",
        "leases/item.py",
        "            async with self.held.turn:\n                pass\n",
        "            pass\n",
        (f"{LATE}::test_a_lock_that_process_leaves_behind_is_freed_with_the_outcome",),
    ),
    Bug(
        "related rows are locked while the outcome is on its way",
        "leases/item.py",
        "        self.is_settled = True\n",
        "",
        (f"{LATE}::test_a_lock_that_process_leaves_behind_is_freed_with_the_outcome",),
    ),
    Bug(
        "an outcome overwrites what a service asked for",
        "pipelines/plan.py",
        "        guarded = [*self._intent, *(column_of",
        "        guarded = [*(column_of",
        (f"{SCHEDULES}[1]",),
    ),
    Bug(
        "children do not wait for a parent that was refused",
        "rows/eligibility.py",
        "        *(not_(is_awaited(leased, taker, min_processing_interval)) for taker in takers),\n",
        "",
        (f"{STARVATION}::test_a_parent_gets_children_that_are_always_busy",),
    ),
    Bug(
        "children do not wait for a parent that came back and has not locked yet",
        "rows/return_tokens.py",
        '    return uuid.UUID(digits[: VERSION_DIGIT_AT - 1] + "8" + digits[VERSION_DIGIT_AT:])',
        "    return uuid.UUID(digits)",
        (f"{STARVATION}::test_a_parent_gets_children_that_are_always_busy",),
    ),
    Bug(
        "children of a dead parent wait for the sweep",
        "rows/eligibility.py",
        "lock_owner.in_(takers) if takers else false())",
        "false())",
        (f"{STARVATION}::test_what_a_dead_holder_locked_is_its_own_pipelines_as_soon_as_the_lease_has_ended",),
    ),
    Bug(
        "a row that a dead item shared waits for the sweep",
        "rows/eligibility.py",
        "or_(lock_owner.contains(OWNER_SEPARATOR), ",
        "or_(false(), ",
        (f"{STARVATION}::test_what_a_dead_holder_locked_is_its_own_pipelines_as_soon_as_the_lease_has_ended",),
    ),
    Bug(
        "children wait for ever for a parent that does not come",
        "rows/eligibility.py",
        "and_(token.is_(None), stepped_back_at > database_time_after(-taker.patience))",
        "token.is_(None)",
        (f"{STARVATION}::test_children_of_a_parent_that_will_not_come_go_on_at_once",),
    ),
    Bug(
        "a row that many share never gets its own turn",
        "rows/eligibility.py",
        "not_(has_waited_long)",
        "true()",
        (f"{STARVATION}::test_a_row_that_many_want_to_share_gets_its_own_turn",),
    ),
    Bug(
        "children wait for a parent that wants nothing",
        "rows/eligibility.py",
        "        taker.ready,\n",
        "",
        (f"{STARVATION}::test_children_of_a_parent_that_will_not_come_go_on_at_once",),
    ),
    Bug(
        "children wait for a parked parent",
        "rows/eligibility.py",
        '        main.attribute("parked_at").is_(None) if main.has_schedule else true(),\n',
        "",
        (f"{STARVATION}::test_children_of_a_parent_that_will_not_come_go_on_at_once",),
    ),
    Bug(
        "freed related rows wait for the next poll",
        "pipelines/settler.py",
        "                self._hint_related(item)\n",
        "",
        (f"{STARVATION}::test_released_children_and_a_refused_parent_are_looked_at_at_once",),
    ),
    Bug(
        "a refused row waits for the next poll",
        "pipelines/settler.py",
        "                counters.reset += 1\n                self.context.look_again_in(self.context.settings.retry_delay)\n",
        "                counters.reset += 1\n",
        (f"{STARVATION}::test_released_children_and_a_refused_parent_are_looked_at_at_once",),
    ),
)
