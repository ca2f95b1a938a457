"""The guards around the host's sessions and engines, and the tests that must notice when one is
missing.
"""

from __future__ import annotations

from typing import Final

from bug import Bug

MANAGER: Final = "tests/pipelines/test_manager_engines.py"
DIALECTS: Final = "tests/conformance/test_session_factories.py"
CONFLICTS: Final = "tests/leases/test_conflicts.py"
TENANTS: Final = "tests/faults/test_row_level_security.py"
POOL: Final = "tests/leases/test_separate_pool.py"
ENDS: Final = "tests/pipelines/test_end_of_the_process.py"
SQLITE_START: Final = "tests/leases/test_sqlite_start.py"
COMMITTED: Final = f"{DIALECTS}::test_sessions_that_commit_every_statement_are_refused"

ENGINES_BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "sessions of one connection are taken",
        "database/binds.py",
        "check_session_factory",
        "isinstance(bind, Connection)",
        "False",
        (f"{DIALECTS}::test_sessions_of_one_connection_are_refused[sqlite-create_savepoint]",),
    ),
    Bug(
        "only an engine that connects under AUTOCOMMIT is refused",
        "database/binds.py",
        "_isolation_level",
        ", bind.get_execution_options()",
        "",
        (
            f"{COMMITTED}[sqlite-options of the engine]",
            f"{COMMITTED}[sqlite-where the session routes]",
        ),
    ),
    Bug(
        "AUTOCOMMIT of the session is overlooked",
        "database/binds.py",
        "_isolation_level",
        'getattr(session.sync_session, "execution_options", {}), ',
        "",
        (f"{COMMITTED}[sqlite-options of the session]",),
    ),
    Bug(
        "the session factory is looked at when the pipeline starts",
        "pipelines/manager.py",
        "PipelineManager.register",
        "        check_session_factory(self._session_factory, pipeline.leased)\n",
        "",
        (
            f"{MANAGER}::test_a_factory_that_commits_every_statement_is_refused",
            f"{MANAGER}::test_what_is_refused_while_the_manager_runs_leaves_no_trace",
        ),
    ),
    Bug(
        "a serialization failure is not run again",
        "database/transaction.py",
        "in_transaction.with_conflicts_retried",
        "if not is_conflict(error):\n                    ",
        "",
        (
            f"{CONFLICTS}::test_a_serialization_failure_is_run_again[SERIALIZABLE]",
            f"{CONFLICTS}::test_one_that_shows_at_the_commit_is_run_again",
        ),
    ),
    Bug(
        "whatever the database refuses is asked again",
        "database/transaction.py",
        "in_transaction.with_conflicts_retried",
        "not is_conflict(error)",
        "False",
        (f"{CONFLICTS}::test_another_error_is_raised_at_once",),
    ),
    Bug(
        "a deadlock is not run again",
        "dialects/postgresql/faults.py",
        "PostgresqlFaults.fault_of",
        ', "40P01"',
        "",
        (f"{CONFLICTS}::test_the_victim_of_a_deadlock_is_run_again",),
    ),
    Bug(
        "a transaction is run again for as long as there is time",
        "database/transaction.py",
        "in_transaction.with_conflicts_retried",
        "CONFLICTS_MAX",
        "50",
        (f"{CONFLICTS}::test_it_is_not_run_again_for_ever",),
    ),
    Bug(
        "a serialization failure comes out of lock_related",
        "leases/related/locker.py",
        "RelatedLocker.lock",
        "if not is_conflict(error):\n                        ",
        "",
        (f"{CONFLICTS}::test_related_rows_that_change_all_the_time_are_not_to_be_had",),
    ),
    Bug(
        "a serialization failure comes out of hold_rows",
        "services/hold.py",
        "_Holder.acquire",
        " and not is_conflict(error)",
        "",
        (f"{CONFLICTS}::test_rows_that_change_all_the_time_are_waited_for_by_a_service",),
    ),
    Bug(
        "a single statement needs no transaction though the host sets something in it",
        "database/transaction.py",
        "_autocommit_options",
        " and not _runs_at_begin(session, bind)",
        "",
        (f"{TENANTS}::test_every_transaction_names_its_tenant[of the session class]",),
    ),
    Bug(
        "listeners of the session are overlooked",
        "database/transaction.py",
        "_runs_at_begin",
        "bool(dispatch.after_begin) or ",
        "",
        (f"{TENANTS}::test_every_transaction_names_its_tenant[of the sessionmaker]",),
    ),
    Bug(
        "listeners of the engine are overlooked",
        "database/transaction.py",
        "_runs_at_begin",
        " or bool(bind.dispatch.begin)",
        "",
        (
            f"{TENANTS}::test_every_transaction_names_its_tenant[of the engine]",
            f"{TENANTS}::test_every_transaction_names_its_tenant[of the engine's options]",
        ),
    ),
    Bug(
        "a first listener that comes later is not heard beside the pool",
        "database/separate_pool.py",
        "SeparatePool._clone",
        "        clone._has_events = engine._has_events\n",
        "",
        (f"{POOL}::test_listeners_of_the_host_are_heard[sqlite-later]",),
    ),
    Bug(
        "a copy of the engine has listeners of its own",
        "database/separate_pool.py",
        "SeparatePool._clone_of_root",
        "        assert engine.dispatch is not None\n",
        "",
        (f"{POOL}::test_listeners_of_the_host_are_heard[sqlite-later]",),
    ),
    Bug(
        "a session beside the pool has a copy of the engine for each question",
        "database/separate_pool.py",
        "SeparatePool.__call__.get_bind",
        "engine not in clones",
        "True",
        (f"{POOL}::test_one_session_has_one_connection",),
    ),
    Bug(
        "a transaction waits for the file as long as the host's own may",
        "dialects/sqlite/begin.py",
        "take_write_lock",
        "usual_ms > wait_ms",
        "False",
        (f"{ENDS}::test_it_ends_while_the_table_is_locked[sqlite]",),
    ),
    Bug(
        "the host's busy timeout is not what it was",
        "dialects/sqlite/begin.py",
        "take_write_lock",
        "is_longer and not connection.invalidated",
        "False",
        (f"{SQLITE_START}::test_the_wait_is_bounded_whatever_the_host_has_set",),
    ),
    Bug(
        "the host's shorter wait for the file is forgotten",
        "dialects/sqlite/begin.py",
        "take_write_lock",
        "usual_ms > wait_ms",
        "True",
        (f"{SQLITE_START}::test_a_shorter_wait_of_the_host_is_kept",),
    ),
    Bug(
        "a connection that is closed from two sides is waited for without an end",
        "dialects/sqlite/transactions.py",
        "SqliteTransactions.roll_back_before_cancel",
        "        _stop_once(driver)\n",
        "",
        (
            "tests/leases/test_stalled_transactions.py::test_the_thread_of_one_that_is_out_of_time_is_stopped_once",
        ),
    ),
    Bug(
        "a transaction that was cut is given up again",
        "database/stalled_transactions.py",
        "OpenTransaction.plan_cancel",
        " or self.was_aborted",
        "",
        (
            "tests/leases/test_stalled_transactions.py::test_one_that_was_cut_is_not_given_up_again[sqlite]",
        ),
    ),
)
