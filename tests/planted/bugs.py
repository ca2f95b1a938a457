"""The guards of the library, what it looks like without each, and the tests that must notice."""

from __future__ import annotations

from bug import Bug

APPLY = "tests/leases/test_apply.py"
CLAIM = "tests/leases/test_claim.py"
RENEW = "tests/leases/test_renew.py"
PLAN = "tests/pipelines/test_plan.py"
WRITER = "tests/pipelines/test_writer.py"
MANAGER = "tests/pipelines/test_manager.py"

BUGS = (
    Bug(
        "the guard of the apply has no token",
        "leases/apply.py",
        '        token == bindparam("rowlock_token", type_=token.type),\n',
        '        bindparam("rowlock_token", type_=token.type).is_not(None),\n',
        (f"{APPLY}::test_under_another_token_nothing_is_written",),
    ),
    Bug(
        "the guard of the apply has no key",
        "leases/apply.py",
        '        leased.key == bindparam("rowlock_key", type_=leased.key.type),\n',
        '        bindparam("rowlock_key", type_=leased.key.type).is_not(None),\n',
        (f"{APPLY}::test_under_another_key_nothing_is_written",),
    ),
    Bug(
        "a batch waits for locked rows",
        "leases/apply.py",
        ".with_for_update(key_share=True, skip_locked=True)",
        ".with_for_update(key_share=True)",
        (f"{APPLY}::test_a_batch_does_not_wait_for_a_locked_row",),
    ),
    Bug(
        "unless_changed is not looked at",
        "leases/apply.py",
        ".where(*provided)",
        "",
        (f"{APPLY}::test_a_value_that_changed_meanwhile_stops_the_write",),
    ),
    Bug(
        "last_processed_at goes back",
        "rows/assignments.py",
        "return case((column > new, column), else_=new)",
        "return new",
        (f"{APPLY}::test_the_processing_time_never_goes_back",),
    ),
    Bug(
        "the outcome overrides a due time that a service set",
        "rows/assignments.py",
        "return case((same_time(column, as_read), new), else_=column)",
        "return case((as_read.is_(None) | as_read.is_not(None), new), else_=column)",
        (f"{APPLY}::test_a_due_time_that_a_service_set_stands", f"{PLAN}::test_a_request_made_meanwhile_is_heard"),
    ),
    Bug(
        "live leases are claimed",
        "rows/eligibility.py",
        "return or_(expires_at.is_(None), expires_at <= database_now())",
        "return or_(expires_at.is_(None), expires_at.is_not(None))",
        (f"{CLAIM}::test_a_live_lease_is_never_stolen",),
    ),
    Bug(
        "the owner is not respected",
        "rows/eligibility.py",
        "        lock_owner.is_(None),\n        lock_owner == owner,\n",
        "        lock_owner.is_(None),\n        lock_owner.is_not(None),\n",
        (f"{CLAIM}::test_the_owner_is_respected_after_the_lease_has_ended",),
    ),
    Bug(
        "parked rows are claimed",
        "rows/eligibility.py",
        'return and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= database_now())',
        'return leased.attribute("due_at") <= database_now()',
        (f"{CLAIM}::test_a_schedule_is_kept",),
    ),
    Bug(
        "the claim waits for locked rows",
        "leases/dialects/postgresql.py",
        ".with_for_update(key_share=True, skip_locked=True, of=leased.model)",
        ".with_for_update(key_share=True, of=leased.model)",
        (f"{CLAIM}::test_rows_locked_by_a_transaction_are_skipped",),
    ),
    Bug(
        "the claim ignores the lockset",
        "leases/dialects/sqlite.py",
        "leased.key.not_in(held) if held else true()",
        "true()",
        (f"{CLAIM}::test_keys_in_the_lockset_are_skipped",),
    ),
    Bug(
        "a claim is not exclusive on SQLite",
        "leases/dialects/sqlite.py",
        'await connection.exec_driver_sql("BEGIN IMMEDIATE")',
        'await connection.exec_driver_sql("BEGIN DEFERRED")',
        (
            "tests/leases/test_transaction.py",
            "tests/leases/test_transaction_engines.py",
            "tests/leases/test_sqlite_start.py",
        ),
    ),
    Bug(
        "a dead holder costs no attempt on PostgreSQL",
        "leases/dialects/postgresql.py",
        "values[attempts] = attempts + due.c.dead_token.is_not(None).cast(Integer)",
        "values[attempts] = attempts",
        (f"{CLAIM}::test_a_dead_holder_has_cost_an_attempt",),
    ),
    Bug(
        "a claim stamps the host's onupdate columns",
        "rows/lease_values.py",
        "return {**kept, **values}",
        "return {**values}",
        (f"{CLAIM}::test_a_claim_is_no_change_of_content", f"{RENEW}::test_a_heartbeat_is_no_change_of_content"),
    ),
    Bug(
        "trust is counted from the answer",
        "leases/claim.py",
        "    trusted_until = sent_at +",
        "    trusted_until = monotonic() +",
        (f"{CLAIM}::test_trust_is_counted_from_before_the_claim_was_sent",),
    ),
    Bug(
        "an expired lease is revived",
        "leases/renew.py",
        'leased.column("lock_expires_at") > database_instant())',
        'leased.column("lock_token").is_not(None))',
        (f"{RENEW}::test_an_expired_lease_is_not_revived",),
    ),
    Bug(
        "a renewal needs no token on PostgreSQL",
        "leases/dialects/postgresql.py",
        "return tuple_(leased.key, token).in_(select(pairs.c.key, pairs.c.token))",
        "return leased.key.in_(select(pairs.c.key))",
        (f"{RENEW}::test_the_lease_of_another_is_not_extended", "tests/leases/test_release.py"),
    ),
    Bug(
        "a renewal needs no token on SQLite",
        "leases/dialects/sqlite.py",
        "tuple_(leased.key, token).in_(leases)",
        "true()",
        (f"{RENEW}::test_the_lease_of_another_is_not_extended", "tests/leases/test_release.py"),
    ),
    Bug(
        "renewals wait for locked rows",
        "leases/dialects/postgresql.py",
        ".limit(limit).with_for_update(key_share=True, skip_locked=True)",
        ".limit(limit).with_for_update(key_share=True)",
        (f"{RENEW}::test_a_locked_row_does_not_hold_up_the_others",),
    ),
    Bug(
        "a row is loaded under any token",
        "leases/load.py",
        'return row if row is not None and getattr(row, "lock_token", None) == item.lock_token else None',
        "return row",
        ("tests/leases/test_load.py",),
    ),
    Bug(
        "an item without trust is written",
        "pipelines/writer.py",
        "            if item.is_trusted():\n",
        "            if True:\n",
        ("tests/pipelines/test_writer.py", "tests/pipelines/test_worker.py"),
    ),
    Bug(
        "a lost COMMIT answer is taken for stale",
        "pipelines/writer.py",
        "        if stamps and await was_processed_at(",
        "        if False and await was_processed_at(",
        (f"{WRITER}::test_a_commit_whose_answer_was_lost_is_settled_by_asking",),
    ),
    Bug(
        "also runs without a matching guard",
        "pipelines/writer.py",
        "            elif written.is_made:\n",
        "            else:\n",
        (WRITER,),
    ),
    Bug(
        "a bad row fails its whole batch",
        "pipelines/batcher.py",
        "if len(batch) > 1 and isinstance(error, Exception) and not is_transient(error):",
        "if False:",
        (f"{WRITER}::test_one_bad_row_spoils_nobody_else",),
    ),
    Bug(
        "nothing is released at shutdown",
        "pipelines/run.py",
        "        if unstarted:\n",
        "        if False:\n",
        (f"{MANAGER}::test_what_was_not_started_is_free_at_once",),
    ),
    Bug(
        "interrupted work is not given back",
        "pipelines/worker.py",
        "                await give_back(self.context, [item])\n",
        "                pass\n",
        (f"{MANAGER}::test_work_that_does_not_is_interrupted_and_given_back",),
    ),
    Bug(
        "a loop dies of a foreign cancellation",
        "pipelines/supervisor.py",
        "            if not task.cancelled() and task.exception() is None:\n",
        "            if task.cancelled() or task.exception() is None:\n",
        ("tests/pipelines/test_supervisor.py",),
    ),
    Bug(
        "a transaction is cancelled with its caller",
        "leases/transaction.py",
        "            cancelled = error\n",
        "            task.cancel()\n            cancelled = error\n",
        ("tests/leases/test_transaction.py",),
    ),
    Bug(
        "a hint is taken down after the fetch",
        "pipelines/fetcher.py",
        "        self._hinted = False\n        try:\n            claimed = await self.fetch_once(limit)\n",
        "        try:\n            claimed = await self.fetch_once(limit)\n            self._hinted = False\n",
        ("tests/pipelines/test_fetcher.py",),
    ),
    Bug(
        "a hint does not end the rest",
        "pipelines/fetcher.py",
        "        self._hinted = True\n        self._woken.set()\n",
        "        self._hinted = True\n",
        ("tests/pipelines/test_fetcher.py", MANAGER),
    ),
    Bug(
        "lost work is not cancelled",
        "pipelines/heartbeater.py",
        "        if act is not None:\n            act()\n",
        "",
        ("tests/pipelines/test_heartbeater.py",),
    ),
    Bug(
        "a released savepoint raises its hints",
        "pipelines/hinter.py",
        "    if savepoint is not None:\n",
        "    if False:\n",
        ("tests/pipelines/test_hinter.py",),
    ),
)
