"""The guards that only show at one moment: found by killing, freezing, cutting off or cancelling at every one of them."""

from __future__ import annotations

from bug import Bug

DEATH = "tests/failpoints/test_death.py"
OUTAGE = "tests/failpoints/test_outage.py::test_an_error_at_every_boundary"
CANCELLED = "tests/cancellation/test_cancelled_anywhere.py"
CRASH = "tests/testing/test_crash_everywhere.py"
SUSPENSIONS = "tests/testing/test_suspensions.py"

FAILPOINT_BUGS = (
    Bug(
        "a cancellation reaches into a transaction",
        "leases/transaction.py",
        "    return await finish(whole(), purpose=purpose, timeout=timeout, give_up=give_up)\n",
        "    return await whole()\n",
        (
            f"{CANCELLED}::test_cancelled_in_a_storm[sqlite-write-alone]",
            f"{CANCELLED}::test_cancelled_once[sqlite-renew]",
        ),
    ),
    Bug(
        "a cancellation comes between the claim and the queue",
        "pipelines/fetcher.py",
        '            return await finish(self._claim_and_queue(order), purpose="fetch")\n',
        "            return await self._claim_and_queue(order)\n",
        (f"{CANCELLED}::test_cancelled_once[sqlite-claim]",),
    ),
    Bug(
        "what was queued stays leased after the end",
        "pipelines/run.py",
        "        if not unstarted:\n            return\n",
        "        for item in unstarted:\n            self.heartbeater.untrack(item)\n        return\n",
        (f"{CANCELLED}::test_cancelled_once[sqlite-claim]",),
    ),
    Bug(
        "a cancelled worker keeps its row",
        "pipelines/settler.py",
        " or await attempt.is_over_after(Ended.INTERRUPTED):",
        ":",
        (f"{CANCELLED}::test_cancelled_once[sqlite-process]",),
    ),
    Bug(
        "an interrupted row stays leased",
        "pipelines/settler.py",
        "                await self._interrupt(item)\n",
        "                pass\n",
        (f"{CANCELLED}::test_cancelled_once[sqlite-drain]",),
    ),
    Bug(
        "a thawed replica writes over its heir's work",
        "leases/apply.py",
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        "    for item in items:\n"
        "        mine = {leased.column('lock_token'): item.lock_token}\n"
        "        await connection.execute(update(leased.table).where(leased.key == item.id).values(mine))\n"
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        (f"{DEATH}::test_frozen_at_every_boundary[sqlite-apply-alone]",),
    ),
    Bug(
        "related rows of a lost answer are forgotten",
        "leases/related.py",
        "                    held.may_hold(leased, taken)\n",
        "",
        (f"{OUTAGE}[sqlite-lock-related]",),
    ),
    Bug(
        "an outcome is given up at the first error",
        "pipelines/writer.py",
        "                if not is_transient(error) or is_late or",
        "                if True or",
        (f"{OUTAGE}[sqlite-apply-alone]",),
    ),
    Bug(
        "a batch that lost its connection is forgotten",
        "pipelines/settler.py",
        "            self._in_a_task(item, rest)\n",
        "            self._finish(item) if written is None else self._in_a_task(item, rest)\n",
        (f"{OUTAGE}[sqlite-apply-together]",),
    ),
    Bug(
        "a row is read once, and given up",
        "pipelines/loader.py",
        "                if not is_transient(error) or monotonic() >= gives_up_at or self.context.hurried:\n",
        "                if not is_transient(error):\n                    raise\n                return False\n                if True:\n",
        (f"{OUTAGE}[sqlite-load]",),
    ),
    Bug(
        "the dead go on when they are cancelled",
        "testing/suspensions.py",
        "        own: asyncio.Future[None] = holds_until.get_loop().create_future()\n",
        "        own = holds_until\n",
        (f"{SUSPENSIONS}::test_who_is_held_does_not_go_on",),
    ),
    Bug(
        "the dead keep their locks in memory",
        "testing/mortality.py",
        "        lockers = mock.patch.dict(_LOCKERS, sqlite=InMemoryLocker())\n",
        "        lockers = mock.patch.dict(_LOCKERS)\n",
        (f"{CRASH}::test_locks_of_the_dead_do_not_last[sqlite]",),
    ),
    Bug(
        "the dead keep their connections",
        "testing/mortality.py",
        "        for connection in self._connections:\n",
        "        for connection in ():\n",
        (f"{CRASH}::test_locks_of_the_dead_do_not_last[sqlite]",),
    ),
    Bug(
        "a crash after the outcome's COMMIT is not tried",
        "testing/mortality.py",
        "        if self._process_is_over and boundary.is_lost_answer:\n",
        "        if False:\n",
        (f"{CRASH}::test_an_idempotent_process_passes[sqlite]",),
    ),
    Bug(
        "a row is freed five leases late",
        "rows/eligibility.py",
        "    return or_(expires_at.is_(None), expires_at <= database_now())\n",
        "    return or_(expires_at.is_(None), expires_at <= database_time_after(timedelta(seconds=-150)))\n",
        (f"{DEATH}::test_killed_at_every_boundary[sqlite-claim]",),
    ),
    Bug(
        "related rows of a failed attempt stay locked until their lease ends",
        "leases/related_rows.py",
        "    await lock_held_related(connection, item)\n    await _unlock_all(connection, item)\n",
        "    await lock_held_related(connection, item)\n",
        (f"{DEATH}::test_killed_at_every_boundary[sqlite-retry-related]",),
    ),
    Bug(
        "tables with long names share a historian",
        "testing/history.py",
        'trigger=f"rowlock_note_{hashlib.sha256(leased.table.fullname.encode()).hexdigest()[:16]}"',
        'trigger=f"rowlock_note_{leased.table.name}"[:50]',
        ("tests/testing/test_history.py::test_tables_whose_long_names_begin_alike[postgresql]",),
    ),
)
