"""Bugs of the protocol itself, found by whole managers under faults; see
``tests/simulation/test_simulation.py``.
"""

from __future__ import annotations

from bug import Bug

ORDERS = ("tests/simulation/test_simulation.py::test_orders",)
FAMILY = ("tests/simulation/test_simulation.py::test_family",)
GIVE_BACK = "tests/pipelines/test_release.py"

PROTOCOL_BUGS = (
    Bug(
        "a claim judges leases by the host's clock",
        "rows/eligibility.py",
        "is_free",
        "return or_(expires_at.is_(None), expires_at <= database_now())",
        'host = __import__("rowlock.clock", fromlist=["clock"]).utc_now\n    now ='
        ' __import__("sqlalchemy").bindparam(None, callable_=host, type_=expires_at.type)\n   '
        " return or_(expires_at.is_(None), expires_at <= now)",
        ORDERS,
    ),
    Bug(
        "trust never ends",
        "leases/item.py",
        "PipelineItem.is_trusted",
        "(monotonic() if at is None else at) < self.trusted_until",
        "True",
        (f"{ORDERS[0]}[21]", *ORDERS),
    ),
    Bug(
        "work goes on when its lease is lost",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._lose_all",
        "attempt.lose()",
        "pass",
        ORDERS,
    ),
    Bug(
        "what was not started stays leased after a shutdown",
        "pipelines/settling/release.py",
        "_release.work",
        "released.update(await release(connection, context.leased, items))",
        "pass",
        (f"{ORDERS[0]}[21]", *ORDERS),
    ),
    Bug(
        "a result whose COMMIT was not answered is taken for lost",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions._earlier_tries",
        "alike.setdefault((pending.stamps, deletes), []).append((number, pending))",
        "pass",
        (f"{ORDERS[0]}[41]", *ORDERS),
    ),
    Bug(
        "what is released at a shutdown is begun all the same",
        "pipelines/item_queue.py",
        "ItemQueue.close",
        "        self._heap.clear()\n",
        "",
        (
            "tests/pipelines/test_item_queue.py::test_close_returns_what_was_not_started_oldest_first",
        ),
    ),
    Bug(
        "an attempt whose holder died is not counted",
        "dialects/sqlite/leases.py",
        "_claimed",
        " + bool(died_here)",
        "",
        ORDERS,
    ),
    Bug(
        "who takes over a row goes on under the dead holder's token",
        "dialects/sqlite/leases.py",
        "_claimed",
        "leased.new_token",
        "values.read_token(dead) or leased.new_token",
        ORDERS,
    ),
    Bug(
        "a failed fetch ends the fetcher",
        "pipelines/fetching/fetcher.py",
        "Fetcher._fetch",
        "Exception as error:  # noqa: BLE001 - ready() is host code and may raise anything",
        "ZeroDivisionError as error:",
        ORDERS,
    ),
    Bug(
        "a result overwrites what a service has changed",
        "leases/apply.py",
        "apply",
        "dialect.is_unchanged(column, value) for column, value in write.unless_changed.items()",
        "",
        ORDERS,
    ),
    Bug(
        "a dead holder's related rows stay locked",
        "leases/claim.py",
        "_release_what_dead_held",
        "await release_dead(connection, related, dead, only_ended=not died_here)",
        "pass",
        FAMILY,
    ),
    Bug(
        "related rows are not freed with their main row",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_alone.work",
        "await release_related(connection, item)",
        "pass",
        FAMILY,
    ),
    Bug(
        "rows of the dead are taken a minute late",
        "rows/eligibility.py",
        "is_free",
        "database_now()",
        "database_time_after(-timedelta(minutes=1))",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "a renewal gives ten times the lease",
        "leases/renew.py",
        "_renewal",
        "lock_timeout)",
        "10 * lock_timeout)",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "no hint is followed",
        "pipelines/fetching/fetcher.py",
        "Fetcher.hint",
        "self._due_by = min(self._due_by, monotonic())\n        self._woken.set()",
        "pass",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "the outcome of the last holder ends the lease of its heir",
        "leases/apply.py",
        "lock_for_apply",
        "rows =",
        "for item in items:\n        mine = {leased.column('lock_token'): item.lock_token}\n       "
        " await connection.execute(update(leased.table).where(leased.key =="
        " item.id).values(mine))\n    rows =",
        (f"{ORDERS[0]}[41]", *ORDERS),
    ),
    Bug(
        "rows are released by one try",
        "pipelines/settling/release.py",
        "_transact",
        "not is_transient(error) or isinstance(error, TransactionTimeout | LockWaitTimeout)",
        "True",
        (f"{GIVE_BACK}::test_a_connection_that_died_keeps_no_row_leased",),
    ),
    Bug(
        "a row that was not released is told as released",
        "pipelines/settling/release.py",
        "release_items",
        "item.id in released",
        "True",
        (f"{GIVE_BACK}::test_a_row_that_was_deleted_is_not_told_as_given_back",),
    ),
    Bug(
        "a release whose COMMIT was not answered is not told",
        "pipelines/settling/release.py",
        "_release.work",
        ".update",
        ".clear()\n        released.update",
        (f"{GIVE_BACK}::test_what_was_given_back_is_told_though_the_answer_was_lost",),
    ),
    Bug(
        "a release that took all its time is tried again",
        "pipelines/settling/release.py",
        "_transact",
        " or isinstance(error, TransactionTimeout | LockWaitTimeout)",
        "",
        (f"{GIVE_BACK}::test_a_release_that_took_all_its_time_is_not_tried_again",),
    ),
    Bug(
        "parked rows are taken",
        "rows/eligibility.py",
        "is_due",
        'and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <='
        " database_now())",
        'leased.attribute("due_at") <= database_now()',
        (f"{ORDERS[0]}[1]", *ORDERS),
    ),
    Bug(
        "rows are taken before they are due",
        "rows/eligibility.py",
        "is_due",
        'and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <='
        " database_now())",
        'leased.attribute("parked_at").is_(None)',
        (f"{ORDERS[0]}[1]", *ORDERS),
    ),
    Bug(
        "pipelines start that a signal has stopped",
        "pipelines/manager.py",
        "PipelineManager._start_all",
        "# By a signal handler, while some of them were not started yet.\n           "
        " self.shutdown()",
        "pass",
        ("tests/pipelines/test_run.py::test_a_signal_in_the_middle_of_the_start_stops_all",),
    ),
    Bug(
        "the judge lets parked rows be taken",
        "testing/judge/timing_rules.py",
        "claimed_early",
        "before.parked_at is not None",
        "False",
        ("tests/testing/test_checker_more.py::test_b4_a_parked_row_is_left_alone",),
    ),
    Bug(
        "the judge lets rows be taken early",
        "testing/judge/timing_rules.py",
        "claimed_early",
        "before.due_at is not None and before.due_at > change.at",
        "False",
        ("tests/testing/test_checker_more.py::test_b4_a_row_is_not_taken_before_it_is_due",),
    ),
)
