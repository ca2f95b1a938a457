"""Bugs of the protocol itself, found by whole managers under faults; see ``tests/simulation/test_simulation.py``."""

from __future__ import annotations

from bug import Bug

ORDERS = ("tests/simulation/test_simulation.py::test_orders",)
FAMILY = ("tests/simulation/test_simulation.py::test_family",)
GIVE_BACK = "tests/pipelines/test_give_back.py"

PROTOCOL_BUGS = (
    Bug(
        "a claim judges leases by the host's clock",
        "rows/eligibility.py",
        "    return or_(expires_at.is_(None), expires_at <= database_now())",
        '    host = __import__("rowlock.clock", fromlist=["clock"]).utc_now\n'
        '    now = __import__("sqlalchemy").bindparam(None, callable_=host, type_=expires_at.type)\n'
        "    return or_(expires_at.is_(None), expires_at <= now)",
        ORDERS,
    ),
    Bug(
        "trust never ends",
        "leases/item.py",
        "        return monotonic() < self.trusted_until\n",
        "        return True\n",
        (f"{ORDERS[0]}[21]", *ORDERS),
    ),
    Bug(
        "work goes on when its lease is lost",
        "pipelines/heartbeater.py",
        "                attempt.lose()\n",
        "                pass\n",
        ORDERS,
    ),
    Bug(
        "what was not started stays leased after a shutdown",
        "pipelines/give_back.py",
        "        released.update(await release(connection, context.leased, items))\n",
        "        pass\n",
        (f"{ORDERS[0]}[21]", *ORDERS),
    ),
    Bug(
        "a result whose COMMIT was not answered is taken for lost",
        "pipelines/writer.py",
        "                alike.setdefault(submission.stamps, []).append((number, submission))\n",
        "                pass\n",
        (f"{ORDERS[0]}[41]", *ORDERS),
    ),
    Bug(
        "what is given back at a shutdown is begun all the same",
        "pipelines/item_queue.py",
        "        left = list(self)\n        self._heap.clear()\n",
        "        left = list(self)\n",
        (f"{ORDERS[0]}[21]", *ORDERS),
    ),
    Bug(
        "an attempt whose holder died is not counted",
        "leases/dialects/sqlite.py",
        "values.read_attempts(failed) + bool(died_here)",
        "values.read_attempts(failed)",
        ORDERS,
    ),
    Bug(
        "who takes over a row goes on under the dead holder's token",
        "leases/dialects/sqlite.py",
        "token, expires_at = leased.new_token(returns=returns),",
        "token, expires_at = values.read_token(dead) or leased.new_token(returns=returns),",
        ORDERS,
    ),
    Bug(
        "a failed fetch ends the fetcher",
        "pipelines/fetcher.py",
        "        except Exception as error:  # noqa: BLE001 - ready() is host code and may raise anything\n",
        "        except ZeroDivisionError as error:\n",
        ORDERS,
    ),
    Bug(
        "a result overwrites what a service has changed",
        "leases/apply.py",
        "    unchanged = [dialect.is_still(column, value) for column, value in write.unless_changed.items()]\n",
        "    unchanged = []\n",
        ORDERS,
    ),
    Bug(
        "a dead holder's related rows stay locked",
        "leases/claim.py",
        "await free_dead(connection, related, dead, only_ended=not died_here)",
        "pass",
        FAMILY,
    ),
    Bug(
        "related rows are not freed with their main row",
        "pipelines/writer.py",
        "                await free_related(connection, item)\n",
        "                pass\n",
        FAMILY,
    ),
    Bug(
        "rows of the dead are taken a minute late",
        "rows/eligibility.py",
        "    return or_(expires_at.is_(None), expires_at <= database_now())",
        "    return or_(expires_at.is_(None), expires_at <= database_time_after(-timedelta(minutes=1)))",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "a renewal gives ten times the lease",
        "leases/renew.py",
        "expires_at=database_time_after(lock_timeout))",
        "expires_at=database_time_after(10 * lock_timeout))",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "no hint is followed",
        "pipelines/fetcher.py",
        "        self._hinted = True\n        self._woken.set()\n",
        "        pass\n",
        (f"{ORDERS[0]}[1]",),
    ),
    Bug(
        "the outcome of the last holder ends the lease of its heir",
        "leases/apply.py",
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        "    for item in items:\n"
        "        mine = {leased.column('lock_token'): item.lock_token}\n"
        "        await connection.execute(update(leased.table).where(leased.key == item.id).values(mine))\n"
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        (f"{ORDERS[0]}[41]", *ORDERS),
    ),
    Bug(
        "rows are given back by one try",
        "pipelines/give_back.py",
        "        if not is_transient(error) or isinstance(error, TransactionTimeout | LockWaitTimeout):\n",
        "        if True:\n",
        (f"{GIVE_BACK}::test_a_connection_that_died_keeps_no_row_leased",),
    ),
    Bug(
        "a row that was not given back is told as released",
        "pipelines/give_back.py",
        "            if item.id in released:\n",
        "            if True:\n",
        (f"{GIVE_BACK}::test_a_row_that_was_deleted_is_not_told_as_given_back",),
    ),
    Bug(
        "a release whose COMMIT was not answered is not told",
        "pipelines/give_back.py",
        "        released.update(await release(connection, context.leased, items))\n",
        "        released.clear()\n        released.update(await release(connection, context.leased, items))\n",
        (f"{GIVE_BACK}::test_what_was_given_back_is_told_though_the_answer_was_lost",),
    ),
    Bug(
        "a release that took all its time is tried again",
        "pipelines/give_back.py",
        " or isinstance(error, TransactionTimeout | LockWaitTimeout):",
        ":",
        (f"{GIVE_BACK}::test_a_release_that_took_all_its_time_is_not_tried_again",),
    ),
    Bug(
        "parked rows are taken",
        "rows/eligibility.py",
        'return and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= database_now())',
        'return leased.attribute("due_at") <= database_now()',
        (f"{ORDERS[0]}[1]", *ORDERS),
    ),
    Bug(
        "rows are taken before they are due",
        "rows/eligibility.py",
        'return and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= database_now())',
        'return leased.attribute("parked_at").is_(None)',
        (f"{ORDERS[0]}[1]", *ORDERS),
    ),
    Bug(
        "pipelines start that a signal has stopped",
        "pipelines/manager.py",
        "            # By a signal handler, while some of them were not started yet.\n            self.shutdown()\n",
        "            pass\n",
        ("tests/pipelines/test_run.py::test_a_signal_in_the_middle_of_the_start_stops_all",),
    ),
    Bug(
        "the judge lets parked rows be taken",
        "testing/lateness.py",
        '    if before.parked_at is not None:\n        yield f"taken though',
        '    if False:\n        yield f"taken though',
        ("tests/testing/test_checker_more.py::test_b4_a_parked_row_is_left_alone",),
    ),
    Bug(
        "the judge lets rows be taken early",
        "testing/lateness.py",
        "    if before.due_at is not None and before.due_at > change.at:\n",
        "    if False:\n",
        ("tests/testing/test_checker_more.py::test_b4_a_row_is_not_taken_before_it_is_due",),
    ),
)
