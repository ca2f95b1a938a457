"""The guards that only show at one moment: found by killing, freezing, cutting off or cancelling
at every one of them.
"""

from __future__ import annotations

from bug import Bug

DEATH = "tests/failpoints/test_death.py"
OUTAGE = "tests/failpoints/test_outage.py::test_an_error_at_every_boundary"
CANCELLED = "tests/cancellation/test_cancelled_anywhere.py"
CRASH = "tests/testing/test_crash_everywhere.py"
SUSPENSIONS = "tests/testing/test_suspensions.py"

FAILPOINT_BUGS = (
    Bug(
        "boundaries of others count among those of a task",
        "testing/crashes/failpoints.py",
        "Failpoints.boundary",
        "not (self.armed or id(self) in _ARMED_HERE.get())",
        "False",
        ("tests/testing/test_failpoints.py::test_what_others_do_at_the_same_time",),
    ),
    Bug(
        "a cancellation reaches into a transaction",
        "database/transaction.py",
        "in_transaction",
        "finished(with_conflicts_retried(), plan_cancel=plan_cancel)",
        "with_conflicts_retried()",
        (
            f"{CANCELLED}::test_cancelled_in_a_storm[sqlite-write-alone]",
            f"{CANCELLED}::test_cancelled_once[sqlite-renew]",
        ),
    ),
    Bug(
        "a cancellation comes between the claim and the queue",
        "pipelines/fetching/fetcher.py",
        "Fetcher.fetch_once",
        'finish(self._claim_and_queue(request), purpose="fetch")',
        "self._claim_and_queue(request)",
        (f"{CANCELLED}::test_cancelled_once[sqlite-claim]",),
    ),
    Bug(
        "what was queued stays leased after the end",
        "pipelines/run.py",
        "PipelineRun._stop_fetching",
        "if not unstarted:\n    ",
        "for item in unstarted:\n            self.heartbeater.untrack(item)\n",
        (f"{CANCELLED}::test_cancelled_once[sqlite-claim]",),
    ),
    Bug(
        "a cancelled worker keeps its row",
        "pipelines/settling/settler.py",
        "Settler._interrupt",
        " or await attempt.ends_within_grace(Ended.INTERRUPTED)",
        "",
        (f"{CANCELLED}::test_cancelled_once[sqlite-process]",),
    ),
    Bug(
        "an interrupted row stays leased",
        "pipelines/settling/settler.py",
        "Settler._settle",
        "await self._interrupt(item, attempt)",
        "pass",
        (f"{CANCELLED}::test_cancelled_once[sqlite-drain]",),
    ),
    Bug(
        "a thawed replica writes over its heir's work",
        "leases/apply.py",
        "lock_for_apply",
        "rows =",
        "for item in items:\n        mine = {leased.column('lock_token'): item.lock_token}\n       "
        " await connection.execute(update(leased.table).where(leased.key =="
        " item.id).values(mine))\n    rows =",
        (f"{DEATH}::test_frozen_at_every_boundary[sqlite-apply-alone]",),
    ),
    Bug(
        "related rows of a lost answer are forgotten",
        "leases/related/locker.py",
        "RelatedLocker.lock.work",
        "                    held.may_hold(leased, acquired)\n",
        "",
        (f"{OUTAGE}[sqlite-lock-related]",),
    ),
    Bug(
        "an outcome is given up at the first error",
        "pipelines/settling/writer.py",
        "Writer.write",
        "not is_transient(error) or is_late",
        "True",
        (
            (
                "tests/faults/test_lost_answers.py::test_every_outcome_is_applied_once[sqlite-0-Apply-3-not"
                " committed]"
            ),
        ),
    ),
    Bug(
        "a batch that lost its connection is forgotten",
        "pipelines/settling/settler.py",
        "Settler._on_batch_done",
        "._in_a_task",
        "._finish(item) if written is None else self._in_a_task",
        (f"{OUTAGE}[sqlite-apply-together]",),
    ),
    Bug(
        "a row is read once, and given up",
        "pipelines/processing/loader.py",
        "Loader.load",
        " or retries.are_over or self.context.grace_over",
        ":\n                    raise\n                return False\n                if True",
        (f"{OUTAGE}[sqlite-load]",),
    ),
    Bug(
        "the dead go on when they are cancelled",
        "testing/crashes/suspensions.py",
        "Watched._barrier",
        ": asyncio.Future[None] = holds_until.get_loop().create_future()",
        " = holds_until",
        (f"{SUSPENSIONS}::test_who_is_held_does_not_go_on",),
    ),
    Bug(
        "the dead keep their locks in memory",
        "testing/crashes/killable_replica.py",
        "KillableReplica.sessions_of",
        ", sqlite=InMemoryLocker()",
        "",
        (f"{CRASH}::test_locks_of_the_dead_do_not_last[sqlite]",),
    ),
    Bug(
        "the dead keep their connections",
        "testing/crashes/killable_replica.py",
        "KillableReplica.cut_connections",
        "self._connections",
        "()",
        (f"{CRASH}::test_locks_of_the_dead_do_not_last[sqlite]",),
    ),
    Bug(
        "a crash after the outcome's COMMIT is not tried",
        "testing/crashes/killable_replica.py",
        "KillableReplica._record_commit",
        "self._process_is_over and boundary.is_lost_answer",
        "False",
        (f"{CRASH}::test_an_idempotent_process_passes[sqlite]",),
    ),
    Bug(
        "a row is freed five leases late",
        "rows/eligibility.py",
        "is_free",
        "database_now()",
        "database_time_after(timedelta(seconds=-150))",
        (f"{DEATH}::test_killed_at_every_boundary[sqlite-claim]",),
    ),
    Bug(
        "related rows of a failed attempt stay locked until their lease ends",
        "leases/related/writes.py",
        "release_related",
        "    await _release_all(connection, item)\n",
        "",
        (f"{DEATH}::test_killed_at_every_boundary[sqlite-retry-related]",),
    ),
    Bug(
        "tables with long names share a historian",
        "testing/judge/history.py",
        "_Watched.of",
        '"rowlock_note_{hashlib.sha256(leased.table.fullname.encode()).hexdigest()[:16]}"',
        '"rowlock_note_{leased.table.name}"[:50]',
        ("tests/testing/test_history.py::test_tables_whose_long_names_begin_alike[postgresql]",),
    ),
)
